"""Topology: the services in the console's graph: this frontend, its tokenizers, its engine cores and their workers.

Plain dicts for JSON. They contain no addresses, because every caller that may send requests may read them.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tetrad.frontend.engine.client import DRAINING, SLEEPING, WORKER_LOST, EngineClient
from tetrad.frontend.engine.facts import EngineLoad, KvCacheFacts, KvRole, WorkerStatus
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.llm.readiness import Dependency, Report
from tetrad.frontend.tokenizer.replicas import Replica
from tetrad.services.version import VERSION

Node = dict[str, Any]
"""One service. state: "connected", "connecting" (not connected so far), "not ready" (it misses something), "draining",
"asleep", "lost" or "unknown"; problem: text for people; since: Unix time in seconds of the connection or its loss."""

_STATES = {DRAINING: "draining", SLEEPING: "asleep"}


def topology_of(models: ModelDirectory, loads: Mapping[AsyncLLM, list[EngineLoad | None]], started: float) -> dict[str, Any]:
    """Return the state of every service.

    Args:
        models: the models of this frontend.
        loads: for each model, the loads of its engine cores in their order; a list of another length cannot be assigned and is
            ignored. Models that were loaded meanwhile have none.
        started: the Unix time in seconds at which this frontend was started.
    """
    report = models.readiness.report()
    dependencies = iter(report.dependencies)
    tokenizer_nodes, engine_nodes = [], []
    for llm in models:
        engines, known = llm.backends.engines.engines, loads.get(llm, [])
        in_order = known if len(known) == len(engines) else [None] * len(engines)
        tokenizer_nodes += [_tokenizer(replica, next(dependencies)) for replica in llm.backends.tokenizers]
        engine_nodes += [_engine(engine, next(dependencies), load) for engine, load in zip(engines, in_order, strict=True)]
    return {"frontend": _frontend(models, report, started), "tokenizers": tokenizer_nodes, "engines": engine_nodes}


def _frontend(models: ModelDirectory, report: Report, started: float) -> Node:
    leaving = report.draining or models.readiness.leaving.is_set()
    return {
        "name": "frontend",
        "state": "draining" if leaving else "not ready" if report.problem else "connected",
        "problem": report.problem,
        "since": started,
        "version": VERSION,
        "num_requests": sum(llm.num_unfinished_requests for llm in models),
    }


def _tokenizer(replica: Replica, dependency: Dependency) -> Node:
    info = replica.info
    lost = "lost" if replica.num_connections else "connecting"
    return {
        "name": dependency.name,
        "state": "connected" if replica.usable else lost,
        "problem": dependency.problem,
        "since": replica.since,
        "version": "" if info is None else info.version,
        "vocab_size": None if info is None else info.vocab_size,
    }


def _engine(engine: EngineClient, dependency: Dependency, load: EngineLoad | None) -> Node:
    info = engine.info
    node: Node = {
        "name": dependency.name,
        "state": _engine_state(engine),
        # The problem of a lost worker is shown at the worker.
        "problem": "" if engine.connected and engine.problem == WORKER_LOST else dependency.problem,
        "since": engine.since,
        "num_requests": engine.num_unfinished,
        "paused": load is not None and load.paused,
        "load": None,
        "workers": _workers(engine, load),
    }
    if load is not None:
        busy = load.scheduler
        node["load"] = {"running": busy.num_running, "waiting": busy.num_waiting, "kv_cache_usage": busy.kv_cache_usage}
        node["kv_cache"] = None if load.kv_cache is None else _kv_cache(load, load.kv_cache)
    if info is not None:
        node["up_since"] = info.epoch / 1e9  # the epoch is the time at which the engine core started, in ns
        node["model"] = info.model.rpartition("/")[2]  # not the path of its files
        node |= {name: getattr(info, name) for name in ("version", "dtype", "device", "max_model_len", "max_num_seqs")}
        node["kv_cache_tokens"] = info.kv_cache_tokens
        node["kv_role"] = "" if info.kv_role is KvRole.NONE else info.kv_role.name.lower()
    return node


def _kv_cache(load: EngineLoad, cache: KvCacheFacts) -> Node:
    """Return the numbers of an engine core's KV cache blocks: in use, free with reusable content, and empty."""
    num_used = load.num_gpu_blocks - 1 - load.num_free_blocks  # without the null block, which has no content
    return asdict(cache) | {
        "num_used_blocks": num_used,
        "num_empty_blocks": load.num_free_blocks - cache.num_free_cached_blocks,
        "num_queries": load.scheduler.prefix_cache_queries,
        "num_hits": load.scheduler.prefix_cache_hits,
    }


def _engine_state(engine: EngineClient) -> str:
    if not engine.connected:
        return "lost" if engine.num_sessions else "connecting"
    return _STATES.get(engine.problem, "connected")


def _workers(engine: EngineClient, load: EngineLoad | None) -> list[Node]:
    if engine.connected and load is not None and load.workers:
        return [_worker(worker, load) for worker in load.workers]
    # The engine core does not report the state of its workers.
    lost = engine.problem == WORKER_LOST
    state = "unknown" if not engine.connected else "lost" if lost else "connected"
    device = "" if engine.info is None else engine.info.device
    problem = "its worker is lost" if lost else "" if engine.connected else "its engine core does not say"
    return [{"name": "worker 0", "state": state, "problem": problem, "since": None, "version": "", "device": device}]


def _worker(worker: WorkerStatus, load: EngineLoad) -> Node:
    lost = worker.connected_s is None
    return {
        "name": f"worker {worker.rank}",
        "state": "connected" if not lost else "asleep" if load.sleeping else "lost",
        "problem": load.problem if lost else "",
        "since": None if worker.connected_s is None else time.time() - worker.connected_s,
        "version": worker.version,
        "device": worker.device,
    }
