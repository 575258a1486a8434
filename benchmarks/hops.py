"""Hops: the messages, bytes and CPU time of each hop between services in a decode step.

`python -m benchmarks.hops`. The services' own functions encode and decode the real messages of a step. gRPC's own cost is
measured with messages of the same sizes, sent in both directions on one stream between two processes. Figures are microseconds
of CPU time, without waiting.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from google.protobuf.message import Message

from benchmarks.figures import median, spread
from benchmarks.options import read_options
from benchmarks.report import Section, write_section
from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.plan import EngineCoreOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.wire import SamplingMessage
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import StepOutputs
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.frontend.engine.wire import decode_step
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.v1 import tokenizer_pb2, types_pb2, worker_pb2
from tetrad.worker_svc.api.wire import decode_plan, encode_result
from tetrad.worker_svc.core.result import ModelRunnerOutput

_BATCHES = (1, 16, 64, 256)
_REPEATS = 300
_EXCHANGES = 2000
_METHOD = "/benchmarks.Echo/Echo"


@dataclass(frozen=True)
class Hop:
    """One message of a step.

    Attributes:
        name: the sender and the receiver.
        write: makes the message from the sender's values.
        read: makes the receiver's values from the message.
    """

    name: str
    write: Callable[[], Message]
    read: Callable[[Any], object]


def hops(batch: int) -> list[Hop]:
    """Return the messages of a decode step of `batch` plain requests, in the order in which they are sent."""
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=batch, max_num_batched_tokens=65_536), KVCacheManager(40_000, 16))
    payload = WorkerPayload(SamplingMessage(types_pb2.SamplingParams()))
    requests = [
        Request(
            key=key, request_id=str(key), token_ids=[7] * 100, num_prompt_tokens=100, max_total_tokens=8000,
            sequence_number=key, handle=key, payload=payload,
        )
        for key in range(batch)
    ]  # fmt: skip
    for request in requests:
        scheduler.add_request(request)
    scheduler.schedule()
    plan = scheduler.schedule()
    assert plan is not None
    assert not plan.new_requests
    handles = np.arange(batch, dtype=np.uint32)
    result = ModelRunnerOutput(plan.step_id, handles, np.full(batch, 1234, np.uint32), compute_seconds=0.01)
    outputs = [EngineCoreOutput(request, [1234]) for request in requests]
    return [
        Hop("engine core to worker: the plan", lambda: encode_plan(plan), lambda message: decode_plan(message.step)),
        Hop(
            "worker to engine core: the result",
            lambda: worker_pb2.ExecuteResponse(output=encode_result(result)),
            lambda message: decode_result(message.output),
        ),
        Hop(
            "engine core to frontend: the outputs",
            lambda: encode_message(StepOutputs(plan.step_id, outputs))[0],
            lambda message: decode_step(message.outputs),
        ),
        Hop("frontend to tokenizer: the ids", lambda: _ids(batch), _read_ids),
        Hop(
            "tokenizer to frontend: the text",
            lambda: _texts(batch),
            lambda message: (unpack_u32(message.handles), list(message.deltas)),
        ),
    ]


def _ids(batch: int) -> tokenizer_pb2.DetokenizeRequest:
    columns = {"handles": pack_u32(range(batch)), "num_tokens": pack_u32([1] * batch), "token_ids": pack_u32([1234] * batch)}
    return tokenizer_pb2.DetokenizeRequest(append=tokenizer_pb2.DetokenizeAppend(**columns))


def _read_ids(message: tokenizer_pb2.DetokenizeRequest) -> object:
    append = message.append
    return unpack_u32(append.handles), split_rows(unpack_u32(append.token_ids), unpack_u32(append.num_tokens))


def _texts(batch: int) -> tokenizer_pb2.DetokenizeResponse:
    return tokenizer_pb2.DetokenizeResponse(handles=pack_u32(range(batch)), deltas=[" word"] * batch)


def microseconds(call: Callable[[], object]) -> float:
    """Return the median duration of a call in microseconds."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * median(times)


def _costs(hop: Hop, message: Message, rounds: int) -> list[str]:
    """Return the table cells of a message: its size in bytes, and the times of writing and reading it."""
    data, kind = message.SerializeToString(), type(message)
    write = [microseconds(lambda: hop.write().SerializeToString()) for _ in range(rounds)]
    read = [microseconds(lambda: hop.read(kind.FromString(data))) for _ in range(rounds)]
    return [f"{len(data):,}", spread(write, 1), spread(read, 1)]


# --- gRPC alone -------------------------------------------------------------------------------------------------------


def _serve_echo(path: str) -> None:
    async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def serve() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("benchmarks.Echo", {"Echo": handler})])
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


async def _exchange(path: str, size: int, server: psutil.Process) -> float:
    """Return the CPU microseconds of one message, of sender and receiver together, on a stream in both directions."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.stream_stream(_METHOD)(wait_for_ready=True)
        message = bytes(size)
        for _ in range(20):
            await call.write(message)
            await call.read()
        before = time.process_time() + sum(server.cpu_times()[:2])
        for _ in range(_EXCHANGES):
            await call.write(message)
            await call.read()
        used = time.process_time() + sum(server.cpu_times()[:2]) - before
        call.cancel()
    return 1e6 * used / (2 * _EXCHANGES)


def transport(sizes: list[int], rounds: int) -> dict[int, list[float]]:
    """Return size -> gRPC's CPU microseconds for messages of this size, one value per round."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "echo")
        process = multiprocessing.get_context("spawn").Process(target=_serve_echo, args=(path,), daemon=True)
        process.start()
        try:
            assert process.pid is not None
            server = psutil.Process(process.pid)
            for _ in range(rounds):
                for size, costs in found.items():
                    costs.append(asyncio.run(_exchange(path, size, server)))
        finally:
            process.terminate()
            process.join()
    return found


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("hops", __doc__)
    batches = _BATCHES[:2] if options.quick else _BATCHES
    made = {batch: [(hop, hop.write()) for hop in hops(batch)] for batch in batches}
    sizes = sorted({message.ByteSize() for pairs in made.values() for _, message in pairs})
    carried = transport([sizes[0], sizes[-1]], options.rounds)
    section = Section("The hops of a decode step: messages, bytes, CPU time")
    section.text(
        "One message of each kind a step, for however many requests. CPU microseconds to write it (own values to bytes) and "
        "to read it (bytes to own values), without gRPC."
    )
    rows = [
        [hop.name if batch == batches[0] else "", str(batch), *_costs(*made[batch][place], options.rounds)]
        for place, (hop, _) in enumerate(made[batches[0]])
        for batch in batches
    ]
    section.table(["", "requests", "bytes", "write", "read"], rows)
    section.text("What gRPC adds to each message, sender and receiver together, to and fro between two processes:")
    section.table(["bytes", "CPU microseconds"], [[f"{size:,}", spread(costs)] for size, costs in carried.items()])
    write_section("hops", section, options)


if __name__ == "__main__":
    main()
