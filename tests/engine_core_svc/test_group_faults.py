"""Groups whose ranks cannot work together: one that never comes, two releases, one worker twice, two engine cores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from tests.engine_core_svc.fake_worker import FakeWorker
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve
from tetrad.engine_core_svc.worker import rank_link
from tetrad.engine_core_svc.worker.link import WorkerLink
from tetrad.services.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from tetrad.v1 import worker_pb2, worker_pb2_grpc


class FakeRank(FakeWorker):
    """A worker that joins any group, unless it has a reason not to; it serves the engine core that opened a stream last."""

    def __init__(self, name: str, version: str = "1.0") -> None:
        super().__init__()
        self.name, self.version, self.join_error = name, version, ""
        self.calls: list[str] = []

    def replace(self):
        """Become a new process, which is awake and in no group; `calls` has those that it gets."""
        self.name += "'"
        self.asleep.clear()
        self.calls.clear()

    async def LoadModel(self, request, context):
        self.calls.append("LoadModel")
        async for answer in super().LoadModel(request, context):
            yield answer

    @property
    def instance_id(self):
        return self.name

    async def GetInfo(self, request, context):
        info = await super().GetInfo(request, context)
        info.version, info.epoch = self.version, self.hello.epoch if self.hello else 0
        return info

    async def JoinGroup(self, request, context):
        self.calls.append(f"JoinGroup {request.rank} of {len(request.group.addresses)}")
        if self.join_error:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, self.join_error)
        return worker_pb2.JoinGroupResponse()


@asynccontextmanager
async def serving(directory, *ranks: FakeRank, **options) -> AsyncIterator[EngineCoreSettings]:
    """Serve these ranks; settings name one more address than there are, if there is one alone."""
    servers = [grpc.aio.server() for _ in ranks]
    targets = [f"unix:{directory}/{number}" for number in range(2)]
    for server, rank, target in zip(servers, ranks, targets, strict=False):
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(rank, server)
        worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(rank, server)
        server.add_insecure_port(target)
        await server.start()
    yield EngineCoreSettings(
        worker_target=",".join(targets),
        tensor_parallel_size=2,
        listen=f"unix:{directory}/engine",
        admin_listen="",
        tokenizer_targets=(),
        **options,
    )
    for server in servers:
        await server.stop(None)


async def ended(settings: EngineCoreSettings) -> None:
    """Serve until the engine core ends by itself, with its error."""
    async with asyncio.timeout(20):
        await serve(settings, asyncio.Event())


async def test_an_engine_core_ends_with_one_line_when_a_rank_never_comes(socket_directory, monkeypatch):
    monkeypatch.setattr(rank_link, "_ANSWER_TIMEOUT_S", 0.5)
    async with serving(socket_directory, FakeRank("a"), recovery_timeout_s=0.1) as settings:
        with pytest.raises(DeadlineExceeded) as raised:
            await ended(settings)

    start = "The 2 ranks of the group have not met within 0.1 s: No worker answers for rank 1 at unix:"
    assert raised.value.message.startswith(start)
    assert "\n" not in raised.value.message


async def test_an_engine_core_ends_with_the_reason_why_its_ranks_do_not_reach_each_other(socket_directory):
    first, second = FakeRank("a"), FakeRank("b")
    first.join_error = "Rank 0 of 2 did not meet the others."
    async with serving(socket_directory, first, second, recovery_timeout_s=0.1) as settings:
        with pytest.raises(DeadlineExceeded, match=r"not met within 0\.1 s: Rank 0 of 2 did not meet the others\.$"):
            await ended(settings)


async def test_ranks_that_have_met_once_are_waited_for_without_a_limit(socket_directory):
    first, second = FakeRank("a"), FakeRank("b")
    async with serving(socket_directory, first, second, recovery_timeout_s=1e-9) as settings:
        link = WorkerLink(settings, epoch=1)
        await link.bring_up()
        first.join_error = "Rank 0 of 2 did not meet the others."
        for _ in range(2):
            with pytest.raises(Unavailable, match="did not meet"):
                await link.bring_up()
        await link.close()


async def test_ranks_of_two_releases_are_refused_at_the_start_and_awaited_later(socket_directory):
    """An update replaces the workers of a group one after another."""
    first, second = FakeRank("a"), FakeRank("b", version="2.0")
    text = r"need one release, but rank 0 runs 1\.0, rank 1 runs 2\.0; start all of them from one release"
    async with serving(socket_directory, first, second) as settings:
        with pytest.raises(FailedPrecondition, match=text):
            await ended(settings)

        second.version = "1.0"
        link = WorkerLink(settings, epoch=1)
        await link.bring_up()
        first.version = "2.0"
        with pytest.raises(Unavailable, match="rank 0 runs 2"):
            await link.bring_up()
        await link.close()


async def test_a_rank_that_is_replaced_in_its_sleep_loads_its_part_and_not_the_whole_model(socket_directory):
    first, second = FakeRank("a"), FakeRank("b")
    async with serving(socket_directory, first, second) as settings:
        link = WorkerLink(settings, epoch=1)
        await link.bring_up()
        await link.sleep(1)
        second.replace()

        await link.wake_up([])

        assert second.calls == ["JoinGroup 1 of 2", "LoadModel"]
        await link.close()


async def test_two_addresses_of_one_worker_are_refused(socket_directory):
    async with serving(socket_directory, FakeRank("same"), FakeRank("same")) as settings:
        with pytest.raises(FailedPrecondition, match="Two ranks have one worker: worker_target 'unix:"):
            await ended(settings)


def test_one_address_for_two_ranks_is_refused():
    with pytest.raises(ValueError, match=r"worker_target names '127\.0\.0\.1:1' twice; each rank needs a worker of its own"):
        EngineCoreSettings(worker_target="127.0.0.1:1,127.0.0.1:1", tensor_parallel_size=2)


@pytest.mark.parametrize("num_taken", [1, 2])
async def test_of_two_engine_cores_on_one_group_the_one_that_started_last_has_it(socket_directory, num_taken):
    """Also if the later one has a part of the group."""
    async with serving(socket_directory, FakeRank("a"), FakeRank("b")) as settings:
        earlier = WorkerLink(settings, epoch=1)
        stream = await earlier.connect(lambda: None)
        targets = ",".join(settings.worker_targets[-num_taken:])
        later = WorkerLink(settings.model_copy(update={"worker_target": targets, "tensor_parallel_size": num_taken}), epoch=2)
        taken = await later.connect(lambda: None)

        with pytest.raises(FailedPrecondition, match="Another engine core, of epoch 2, has the worker") as raised:
            await earlier.connect(lambda: None)

        assert raised.value.reason == "STALE_EPOCH"
        for each in (stream, taken, earlier, later):
            with suppress(grpc.RpcError):
                await each.close()
