"""Facts: encodes the model, the server and its load as messages of VllmEngine.

Fields without a value in Tetrad stay zero, which means "unknown" in this API: media, shared memory, throughput.
"""

import datetime
import json
from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2

from tetrad.frontend.engine.facts import EngineInfo, EngineLoad, KvRole
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.version import VERSION

_SERVER_TYPE = "vllm-grpc"
"""The name by which gateways recognise this API."""
_KV_CONNECTOR = "grpc"
_KV_ROLES = {
    KvRole.NONE: "",
    KvRole.PRODUCER: "kv_producer",
    KvRole.CONSUMER: "kv_consumer",
    KvRole.BOTH: "kv_both",
}


def model_info(llm: AsyncLLM) -> vllm_engine_pb2.GetModelInfoResponse:
    """Return the facts of the served model."""
    names, tokenizer = llm.model_names, llm.tokenizer_info
    return vllm_engine_pb2.GetModelInfoResponse(
        model_path=names.root,
        tokenizer_path=names.root,
        served_model_name=names.names[0],
        is_generation=llm.generates,
        max_context_length=llm.max_model_len,
        max_req_input_len=llm.max_model_len - (llm.generates),
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=sorted(tokenizer.eos_token_ids),
        bos_token_id=tokenizer.bos_token_id,
        default_sampling_params_json=json.dumps(llm.default_sampling_fields()),
    )


def server_info(llm: AsyncLLM, *, is_paused: bool, uptime_s: float) -> vllm_engine_pb2.GetServerInfoResponse:
    """Return the facts of the server."""
    engine, role = llm.engine_info, llm.backends.engines.kv_role
    return vllm_engine_pb2.GetServerInfoResponse(
        active_requests=llm.num_unfinished_requests,
        is_paused=is_paused,
        uptime_seconds=uptime_s,
        server_type=_SERVER_TYPE,
        kv_connector="" if role is KvRole.NONE else _KV_CONNECTOR,
        kv_role=_KV_ROLES[role],
        data_parallel_size=llm.num_engines,
        kv_cache_dtype=engine.kv_cache_dtype,
        block_size=engine.block_size,
        model_dtype=engine.dtype,
        max_num_seqs=engine.max_num_seqs,
        constrained_decoding_start="first_token",
    )


def loads(engine: EngineInfo, ranks: Sequence[int], every: Sequence[EngineLoad | None]) -> vllm_engine_pb2.GetLoadsResponse:
    """Return the load of each engine core.

    Args:
        engine: the facts of the first engine core; all have the same.
        ranks: the ranks of all engine cores.
        every: their loads; None: no answer.
    """
    return vllm_engine_pb2.GetLoadsResponse(
        timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
        version=VERSION,
        dp_rank_count=len(every),
        loads=[_load(rank, engine, load) for rank, load in zip(ranks, every, strict=True) if load is not None],
    )


def _load(rank: int, engine: EngineInfo, load: EngineLoad) -> vllm_engine_pb2.SchedulerLoad:
    scheduler = load.scheduler
    capacity = engine.kv_cache_tokens
    return vllm_engine_pb2.SchedulerLoad(
        dp_rank=rank,
        num_running_reqs=scheduler.num_running,
        num_waiting_reqs=scheduler.num_waiting,
        num_total_reqs=scheduler.num_running + scheduler.num_waiting,
        num_used_tokens=round(scheduler.kv_cache_usage * capacity),
        max_total_num_tokens=capacity,
        token_usage=scheduler.kv_cache_usage,
        cache_hit_rate=scheduler.prefix_cache_hits / max(scheduler.prefix_cache_queries, 1),
        utilization=scheduler.kv_cache_usage,  # as vLLM's servicer for smg reports it
        max_running_requests=engine.max_num_seqs,
        num_waiting_uncached_tokens=load.num_waiting_tokens,
    )
