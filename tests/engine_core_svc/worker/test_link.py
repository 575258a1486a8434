"""The calls that bring a worker up, and unexpected answers to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_status import rpc_status

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.worker.link import WorkerLink
from tetrad.engine_core_svc.worker.rank_link import RankLink
from tetrad.services.errors import FailedPrecondition, ModelError, NotFound, TetradError, Unavailable
from tetrad.services.rpc.carrier import GrpcCarrier
from tetrad.services.rpc.status import to_status
from tetrad.v1 import worker_pb2, worker_pb2_grpc

GARBAGE = b"\xff\xff\xff"


class Answers(grpc.GenericRpcHandler):
    """Answers each lifecycle call well, except one, with bytes that are no message."""

    def __init__(self, garbage: str) -> None:
        self._garbage = garbage

    def service(self, details):
        name = details.method.rpartition("/")[2]
        answers = {
            "LoadModel": worker_pb2.LoadModelResponse(model=worker_pb2.ModelInfo(vocab_size=100, max_position_embeddings=64)),
            "GetKvCacheSpec": worker_pb2.GetKvCacheSpecResponse(groups=[worker_pb2.KvCacheGroup(block_size_bytes=1024)]),
        }
        answer = answers[name].SerializeToString() if name in answers else b""
        answer = GARBAGE if name == self._garbage else answer

        async def one(_request, _context):
            return answer

        async def several(_request, _context):
            yield answer

        if name in ("LoadModel", "WarmUp"):
            return grpc.unary_stream_rpc_method_handler(several)
        return grpc.unary_unary_rpc_method_handler(one)


@pytest.mark.parametrize("method", ["GetInfo", "LoadModel", "GetKvCacheSpec", "DetermineAvailableMemory", "WarmUp"])
async def test_a_worker_that_answers_bytes_which_are_no_message_is_none_and_ends_no_engine_core(socket_directory, method):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Answers(method),))
    server.add_insecure_port(f"unix:{socket_directory}/worker")
    await server.start()
    settings = EngineCoreSettings(worker_target=f"unix:{socket_directory}/worker", num_gpu_blocks_override=64)
    link = WorkerLink(settings, epoch=1)

    with pytest.raises(Unavailable, match="bytes that cannot be read"):
        await link.bring_up()

    await link.close()
    await server.stop(None)


async def test_a_worker_of_an_older_release_serves_raw_log_probabilities_alone(socket_directory):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Answers(""),))  # a worker without capabilities
    server.add_insecure_port(f"unix:{socket_directory}/worker")
    await server.start()
    options = {"worker_target": f"unix:{socket_directory}/worker", "num_gpu_blocks_override": 64}
    link = WorkerLink(EngineCoreSettings(**options, logprobs_mode="raw_logits"), epoch=1)

    with pytest.raises(Unavailable, match="does not support logprobs_mode raw_logits; upgrade it"):
        await link.bring_up()

    await link.close()
    await server.stop(None)


async def test_an_order_with_an_answer_that_is_no_message_ends_with_an_error(socket_directory):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Answers("CollectiveRpc"),))
    server.add_insecure_port(f"unix:{socket_directory}/worker")
    await server.start()
    rank = RankLink(EngineCoreSettings(), 0, f"unix:{socket_directory}/worker", GrpcCarrier())

    with pytest.raises(Unavailable, match="bytes that cannot be read"):
        await rank.call("CollectiveRpc", worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest())

    await rank.close()
    await server.stop(None)


class Replaced(worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """A worker without a model, which has just taken the place of another one."""

    async def LoadLora(self, request, context):
        error = FailedPrecondition("No model is loaded; call LoadModel first.", reason="NOT_READY")
        await context.abort_with_status(rpc_status.to_status(to_status(error)))


async def test_a_worker_that_was_replaced_is_unavailable_for_loads_of_adapters(socket_directory):
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(Replaced(), server)
    server.add_insecure_port(f"unix:{socket_directory}/worker")
    await server.start()
    link = WorkerLink(EngineCoreSettings(worker_target=f"unix:{socket_directory}/worker"), epoch=1)

    with pytest.raises(Unavailable, match="was replaced"):
        await link.load_lora(Adapter(LoraRef("a", 1, "/a"), key=1))

    await link.close()
    await server.stop(None)


class FakeRank(worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """A rank that loads adapters, whose files have this digest, or refuses them; `loaded` has those that it keeps.

    It may have a profile, whose trace is written once `writes` is set; without one, it calls `on_refusal`.
    """

    def __init__(self, digest: bytes = b"", error: TetradError | None = None) -> None:
        self.digest, self.error, self.loaded = digest, error, set()
        self.trace, self.writes, self.on_refusal = "", asyncio.Event(), lambda: None

    async def StopProfile(self, request, context):
        if not self.trace:
            self.on_refusal()
            await context.abort_with_status(rpc_status.to_status(to_status(NotFound("No profile is being recorded."))))
        await self.writes.wait()
        return worker_pb2.WorkerLifecycleServiceStopProfileResponse(path=self.trace)

    async def LoadLora(self, request, context):
        if self.error is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(self.error)))
        self.loaded.add(request.lora.id)
        return worker_pb2.WorkerLifecycleServiceLoadLoraResponse(digest=self.digest)

    async def UnloadLora(self, request, context):
        self.loaded.discard(request.id)
        return worker_pb2.WorkerLifecycleServiceUnloadLoraResponse()


@asynccontextmanager
async def linked(directory: Path, *ranks: FakeRank) -> AsyncIterator[WorkerLink]:
    servers, targets = [grpc.aio.server() for _ in ranks], [f"unix:{directory}/{number}" for number in range(len(ranks))]
    for server, rank, target in zip(servers, ranks, targets, strict=True):
        worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(rank, server)
        server.add_insecure_port(target)
        await server.start()
    link = WorkerLink(EngineCoreSettings(worker_target=",".join(targets), tensor_parallel_size=len(ranks)), epoch=1)
    yield link
    await link.close()
    for server in servers:
        await server.stop(None)


@pytest.mark.parametrize("refusing", [0, 1])
async def test_an_adapter_that_one_rank_refuses_stays_on_no_rank(socket_directory, refusing):
    ranks = [FakeRank(), FakeRank()]
    ranks[refusing].error = ModelError("No such directory.")
    ranks[1 - refusing].loaded.add(1)  # its answer was faster than the refusal
    async with linked(socket_directory, *ranks) as link:
        with pytest.raises(FailedPrecondition, match="No such directory"):
            await link.load_lora(Adapter(LoraRef("a", 1, "/a"), key=1))

    assert [rank.loaded for rank in ranks] == [set(), set()]


async def test_ranks_with_different_files_of_an_adapter_do_not_run_it(socket_directory):
    ranks = [FakeRank(b"one"), FakeRank(b"two")]
    async with linked(socket_directory, *ranks) as link:
        with pytest.raises(ModelError, match="Rank 1 has other files than rank 0"):
            await link.load_lora(Adapter(LoraRef("a", 1, "/a"), key=1))

    assert [rank.loaded for rank in ranks] == [set(), set()]


async def test_ranks_with_the_same_files_of_an_adapter_keep_it(socket_directory):
    ranks = [FakeRank(b"one"), FakeRank(b"one")]
    async with linked(socket_directory, *ranks) as link:
        assert await link.load_lora(Adapter(LoraRef("a", 1, "/a"), key=1)) == b"one"

    assert [rank.loaded for rank in ranks] == [{1}, {1}]


@pytest.mark.parametrize("replaced", [0, 1])
async def test_a_profile_ends_on_all_ranks_that_record_it(socket_directory, replaced):
    ranks = [FakeRank(), FakeRank()]
    recording = ranks[1 - replaced]
    recording.trace, ranks[replaced].on_refusal = "/trace", recording.writes.set
    async with linked(socket_directory, *ranks) as link:
        assert await link.stop_profile() == ["/trace"]


async def test_without_a_profile_there_is_none_to_stop(socket_directory):
    async with linked(socket_directory, FakeRank(), FakeRank()) as link:
        with pytest.raises(NotFound):
            await link.stop_profile()
