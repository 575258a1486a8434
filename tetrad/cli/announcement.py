"""Announcement: formats the lines that a ready `tetrad serve` prints: model, capacity, addresses, and an example request.

Called once by `tetrad serve`. Knows URLs and the form of two requests.
"""

import json
import shlex

import grpc

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.engine.facts_wire import (
    decode_engine_info,
    decode_tokenizer_info,
    engine_info_request,
    tokenizer_info_request,
)
from tetrad.frontend.request.pooling import PoolingFacts
from tetrad.services.rpc.channel import open_channel
from tetrad.stack.stack_url import UNIX, local_host, url_of
from tetrad.v1 import engine_core_pb2_grpc, tokenizer_pb2_grpc

_TIMEOUT_S = 10.0


async def has_chat_template(tokenizer_target: str) -> bool:
    """Return whether a tokenizer can render conversations; True, the usual value, if it does not answer."""
    async with open_channel(tokenizer_target) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        try:
            answer = await stub.GetInfo(tokenizer_info_request(), timeout=_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError:
            return True
    return decode_tokenizer_info(answer).has_chat_template


async def engine_facts(admin_target: str) -> EngineInfo | None:
    """Return the facts of an engine core and its worker; None if it does not answer."""
    async with open_channel(admin_target) as channel:
        stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        try:
            answer = await stub.GetInfo(engine_info_request(), timeout=_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError:
            return None
    return decode_engine_info(answer.info)


def announcement(frontend: FrontendSettings, engine: EngineInfo | None, *, num_engines: int = 1, can_chat: bool) -> str:
    """Return the lines to print.

    Args:
        frontend: the frontend's settings.
        engine: facts of the engine core; None: unknown.
        num_engines: number of such engine cores.
        can_chat: whether the model has a chat template; without one, the example request is a completion.
    """
    url, name, is_unix = url_of(frontend), frontend.served_model_names[0], frontend.uds is not None
    names = ", ".join([name, *(each.served_model_names[0] for each in frontend.further_models)])
    lines = [
        f"Tetrad serves {names} at {url if is_unix else f'{url}/v1'}. Ctrl-C stops it.",
        *([] if engine is None else _capacity(engine, num_engines)),
    ]
    lines += [] if is_unix else [f"  API       {url}/v1, reference at {url}/docs"]
    if frontend.grpc_port is not None:
        lines += [f"  gRPC      {local_host(frontend)}:{frontend.grpc_port}"]
    if frontend.console and not is_unix:
        lines += [f"  console   {url}/"]
    pooling = None if engine is None else engine.pooling
    path, body = _example(can_chat=can_chat) if pooling is None else _pooling_example(pooling)
    return "\n".join([*lines, "Try:", _command(url, path, {"model": name, **body}, needs_key=_needs_key(frontend))])


def _capacity(engine: EngineInfo, num_engines: int) -> list[str]:
    engines = [f"  engines   {num_engines}, each with this device and KV cache"] if num_engines > 1 else []
    return engines + _capacity_of_one(engine)


def _capacity_of_one(engine: EngineInfo) -> list[str]:
    if not engine.kv_cache_tokens:
        return [f"  model     context of {engine.max_model_len:,} tokens", f"  device    {engine.device}"]
    num_tokens = (engine.num_gpu_blocks - 1) * engine.block_size  # without the null block
    num_longest = min(engine.max_num_seqs, num_tokens // engine.max_model_len)
    weights = f"{engine.weights_dtype} weights, " if engine.weights_dtype else ""
    kept = f" in {engine.kv_cache_dtype}" if engine.kv_cache_dtype else ""
    room = f"{num_longest} requests of full context" if num_longest else "less than one request of full context"
    return [
        f"  model     {weights}context of {engine.max_model_len:,} tokens",
        f"  device    {engine.device}, {engine.dtype} activations",
        f"  KV cache  {num_tokens:,} tokens{kept}: {room}; up to {engine.max_num_seqs} requests run at a time",
    ]


def _needs_key(frontend: FrontendSettings) -> bool:
    return bool(frontend.api_key or frontend.api_key_file)


def _example(*, can_chat: bool) -> tuple[str, dict[str, object]]:
    """Return path and body of an example request for a generative model."""
    if can_chat:
        messages = [{"role": "user", "content": "Name the capital of France."}]
        return "/v1/chat/completions", {"messages": messages, "temperature": 0}
    return "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}


def _pooling_example(pooling: PoolingFacts) -> tuple[str, dict[str, object]]:
    if pooling.embedding_size:
        return "/v1/embeddings", {"input": "Paris is the capital of France."}
    if pooling.num_labels == 1:
        return "/rerank", {"query": "capital of France", "documents": ["Paris is a city.", "Bread is food."]}
    return "/classify" if "classify" in pooling.tasks else "/pooling", {"input": "Paris is the capital of France."}


def _command(url: str, path: str, body: dict[str, object], *, needs_key: bool) -> str:
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    key = ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    socket = url.removeprefix(UNIX)
    where = f"{url}{path}" if socket == url else f"--unix-socket {shlex.quote(socket)} http://localhost{path}"
    return f"curl {where}{key} -H 'Content-Type: application/json' -d {data}"
