"""Every method of every service, with random bytes and random valid messages: no call ends with INTERNAL or UNKNOWN.

The services are real processes over the simulated device. After each burst they are the same processes, no request or block is
left, and a valid request has the same answer as before.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import note
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2

from tests.e2e.conftest import Server
from tests.fuzz.messages import messages
from tetrad.openengine_api import control_pb2 as openengine_control_pb2
from tetrad.openengine_api import inference_pb2 as openengine_inference_pb2
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, inference_pb2, tokenizer_pb2, worker_pb2, worker_pb2_grpc
from tetrad.vllm_api import inference_pb2 as vllm_inference_pb2

DEADLINE_S = 20
WATCH_DEADLINE_S = 0.15
MAX_RESPONSES = 20
ENDLESS = {"WatchLoad", "SubscribeKvEvents", "Watch"}
"""Streams that last until the caller leaves: their deadline is no hang."""

FAULTS = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}

HELLOS = {
    "tetrad.v1.EngineCoreService/Session": engine_core_pb2.SessionRequest(
        hello=engine_core_pb2.SessionHello(client_id="fuzz", schema_revision=SCHEMA_REVISION)
    ),
    "tetrad.v1.WorkerService/Execute": worker_pb2.ExecuteRequest(
        hello=worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=1)
    ),
}
"""What a stream begins with, so that not every one fails at its first message."""


@dataclass(frozen=True, repr=False)
class Call:
    """One call: a method and its messages, written out."""

    method: MethodDescriptor
    payloads: tuple[bytes, ...]

    @property
    def path(self) -> str:
        return f"{self.method.containing_service.full_name}/{self.method.name}"

    def __repr__(self) -> str:
        return f"Call({self.path}, {[payload.hex() for payload in self.payloads]})"


def calls(*files: FileDescriptor, only: Callable[[str], bool] = lambda _: True) -> st.SearchStrategy[Call]:
    """Return random calls of the methods of some files' services."""
    methods = [m for file in files for service in file.services_by_name.values() for m in service.methods if only(service.name)]
    return st.sampled_from(methods).flatmap(calls_of)


def calls_of(method: MethodDescriptor) -> st.SearchStrategy[Call]:
    kind = GetMessageClass(method.input_type)
    valid = messages(method.input_type).map(lambda fields: kind(**fields).SerializeToString())
    noise = st.binary(max_size=60) | st.builds(lambda data, tail: data + tail, valid, st.binary(max_size=4))
    one = st.one_of(valid, valid, valid, noise)
    if not method.client_streaming:
        return one.map(lambda payload: Call(method, (payload,)))
    hello = HELLOS.get(f"{method.containing_service.full_name}/{method.name}")
    first = [hello.SerializeToString()] if hello is not None else []
    rest = st.lists(one, max_size=4)
    return st.one_of(
        rest.map(lambda payloads: Call(method, tuple(payloads))),
        *(rest.map(lambda payloads: Call(method, (*first, *payloads))) for _ in range(4)),
    )


def status_of(channel: grpc.Channel, call: Call) -> grpc.StatusCode:
    """Return the status that a call ends with; OK if it goes on after some answers and is left."""
    is_endless = call.method.name in ENDLESS
    rpc = channel.stream_stream(f"/{call.path}")(iter(call.payloads), timeout=WATCH_DEADLINE_S if is_endless else DEADLINE_S)
    try:
        for number, _ in enumerate(rpc):
            if number + 1 >= MAX_RESPONSES:
                rpc.cancel()
                return grpc.StatusCode.OK
    except grpc.RpcError as error:
        note(f"{error.code()}: {error.details()}")
        if is_endless and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return grpc.StatusCode.OK
        return error.code()
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("stack")
    limits = ("--max-model-len", "256", "--max-n", "4", "--tokenizer-pool-size", "1")
    server = Server(directory / "log", "--device", "sim", *limits)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture
def unharmed(stack) -> Iterator[None]:
    """Check after the test that the stack is what it was."""
    before, processes = answer(stack), service_processes(stack)

    yield

    stack.wait_idle(20)
    assert answer(stack) == before
    assert service_processes(stack) == processes


def answer(stack: Server) -> list[Any]:
    """Return what a seeded request is answered; waits for what a burst may have left behind, such as a pause."""
    body = {"prompt": "Hello", "max_tokens": 8, "seed": 3, "return_token_ids": True}
    response = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 3}
    chat_response = httpx.post(f"{stack.url}/v1/chat/completions", json=chat, timeout=30)
    assert chat_response.status_code == 200, chat_response.text
    return [response.json()["choices"], chat_response.json()["choices"]]


def has_run_out_of_its_own_time(call: Call, status: grpc.StatusCode) -> bool:
    """Return whether a call set itself a time limit and has reached it."""
    if status is not grpc.StatusCode.DEADLINE_EXCEEDED or not call.path.endswith("/CollectiveRpc"):
        return False
    request = engine_core_pb2.EngineCoreAdminServiceCollectiveRpcRequest.FromString(call.payloads[0])
    return request.HasField("timeout_s")


def service_processes(stack: Server) -> set[int]:
    """Return the services' processes; renderers of templates come and go."""
    passing = ("template_process", "trial_process")
    return {p.pid for p in stack.processes() if not any(argument.endswith(passing) for argument in p.cmdline())}


@pytest.fixture
def send(fuzz) -> Callable[..., None]:
    """Send random calls to an address and look at their statuses."""

    def run(target: str, strategy: st.SearchStrategy[Call], name: str, *, examples: int = 40) -> None:
        statuses: dict[grpc.StatusCode, int] = {}
        with grpc.insecure_channel(target) as channel:

            def check(call: Call) -> None:
                began = time.monotonic()
                status = status_of(channel, call)
                statuses[status] = statuses.get(status, 0) + 1
                if has_run_out_of_its_own_time(call, status):
                    return
                assert status not in FAULTS, f"{call} was answered with {status} after {time.monotonic() - began:.1f} s"

            check.__name__ = name
            number = fuzz(check, strategy, examples=examples)
        assert sum(statuses.values()) >= min(number, examples // 2)
        # Both worlds are reached: what is refused, and what is done.
        assert statuses.get(grpc.StatusCode.OK, 0) > number // 50, statuses

    return run


def test_tokenizer(stack, unharmed, send):
    send(f"unix:{stack.stack_directory()}/tokenizer.sock", calls(tokenizer_pb2.DESCRIPTOR), "TokenizerService")


def test_engine_core_sessions(stack, unharmed, send):
    sessions = calls(engine_core_pb2.DESCRIPTOR, only=lambda service: service == "EngineCoreService")
    send(f"unix:{stack.stack_directory()}/engine-core.sock", sessions, "EngineCoreService", examples=60)


def test_engine_core_admin(stack, unharmed, send):
    target = f"unix:{stack.stack_directory()}/engine-core-admin.sock"
    admin = calls(engine_core_pb2.DESCRIPTOR, only=lambda service: service == "EngineCoreAdminService")
    try:
        send(target, admin, "EngineCoreAdminService")
    finally:
        with grpc.insecure_channel(target) as channel:
            channel.unary_unary("/tetrad.v1.EngineCoreAdminService/WakeUp")(b"", timeout=DEADLINE_S)


def test_public_api(stack, unharmed, send):
    send(stack.grpc_target, calls(inference_pb2.DESCRIPTOR), "InferenceService and ModelService")


def test_gateway_apis(stack, unharmed, send):
    files = (vllm_engine_pb2.DESCRIPTOR, vllm_inference_pb2.DESCRIPTOR)
    send(stack.grpc_target, calls(*files), "VllmEngine and Inference")


def test_openengine(stack, unharmed, send):
    files = (openengine_inference_pb2.DESCRIPTOR, openengine_control_pb2.DESCRIPTOR)
    send(stack.grpc_target, calls(*files), "OpenEngine's Inference and Control")


@pytest.mark.parametrize("socket", ["frontend", "tokenizer", "engine-core", "worker"])
def test_health_and_reflection(stack, unharmed, send, socket):
    target = stack.grpc_target if socket == "frontend" else f"unix:{stack.stack_directory()}/{socket}.sock"
    send(target, calls(health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR), f"Health of {socket}", examples=20)


class OwnWorker:
    """A worker that no engine core owns, so that anything may be asked of it."""

    def __init__(self, directory: Path) -> None:
        self.target = f"unix:{directory}/worker.sock"
        flags = ["--device", "sim", "--listen", self.target, "--profile-dir", str(directory / "profiles")]
        self.log = directory / "log"
        with self.log.open("wb") as file:
            command = [sys.executable, "-m", "tetrad.worker_svc", *flags]
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=dict(os.environ))

    def first_token(self, model: str) -> int:
        """Bring a model up and run one step of one request; return its token."""
        with grpc.insecure_channel(self.target) as channel:
            lifecycle = worker_pb2_grpc.WorkerLifecycleServiceStub(channel)
            list(lifecycle.LoadModel(worker_pb2.LoadModelRequest(model=model), timeout=DEADLINE_S, wait_for_ready=True))
            layout = {
                "num_blocks": 64,
                "block_size": 16,
                "max_model_len": 256,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 256,
            }
            lifecycle.InitializeKvCache(worker_pb2.InitializeKvCacheRequest(**layout), timeout=DEADLINE_S)
            list(lifecycle.WarmUp(worker_pb2.WarmUpRequest(), timeout=DEADLINE_S))
            step = worker_pb2.SchedulerOutput(step_id=1, new_requests=[new_request()], total_num_scheduled_tokens=3)
            requests = [HELLOS["tetrad.v1.WorkerService/Execute"], worker_pb2.ExecuteRequest(step=step)]
            stream = worker_pb2_grpc.WorkerServiceStub(channel).Execute(iter(requests), timeout=DEADLINE_S)
            _, output = stream
            return int.from_bytes(output.output.token_ids, "little")


def new_request() -> worker_pb2.NewRequestData:
    return worker_pb2.NewRequestData(
        handle=1,
        token_ids=pack_u32([500, 501, 502]),
        num_prompt_tokens=3,
        num_scheduled_tokens=3,
        block_ids=[pack_u32([1])],
        request_id="r",
    )


@pytest.fixture
def worker(socket_directory) -> Iterator[OwnWorker]:
    own = OwnWorker(socket_directory)
    try:
        yield own
    finally:
        own.process.terminate()
        own.process.wait(20)


def plans() -> st.SearchStrategy[Call]:
    """Return streams whose plans are nearly right: a good request, with some of its fields random."""
    method = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].methods_by_name["Execute"]
    hello = HELLOS["tetrad.v1.WorkerService/Execute"].SerializeToString()

    def step(step_id: int, fields: dict[str, Any], handle: int, random: dict[str, Any], names: list[str]) -> bytes:
        good = new_request()
        good.handle = handle
        changed = worker_pb2.NewRequestData(**{name: random[name] for name in names if name in random})
        for name in names:
            if name in random:
                good.ClearField(name)
        good.MergeFrom(changed)
        plan = worker_pb2.SchedulerOutput(**fields)
        plan.step_id = step_id
        plan.new_requests.append(good)
        return worker_pb2.ExecuteRequest(step=plan).SerializeToString()

    request = worker_pb2.NewRequestData.DESCRIPTOR
    plan_fields = messages(worker_pb2.SchedulerOutput.DESCRIPTOR).map(
        lambda fields: {name: value for name, value in list(fields.items())[:1] if name not in ("new_requests", "draft_tokens")}
    )
    names = st.lists(st.sampled_from([field.name for field in request.fields]), max_size=2, unique=True)
    one = st.builds(step, st.integers(1, 4), plan_fields, st.integers(1, 3), messages(request), names)
    return st.lists(one, min_size=1, max_size=4).map(lambda payloads: Call(method, (hello, *payloads)))


def test_worker(worker, smollm2, send, socket_directory):
    model = str(smollm2)
    expected = worker.first_token(model)
    children = psutil.Process(worker.process.pid).num_threads()

    send(worker.target, calls(worker_pb2.DESCRIPTOR), "WorkerService and WorkerLifecycleService", examples=60)
    worker.first_token(model)
    send(worker.target, plans(), "Execute", examples=60)

    assert worker.process.poll() is None, worker.log.read_text()
    assert worker.first_token(model) == expected
    with grpc.insecure_channel(worker.target) as channel:
        lifecycle = worker_pb2_grpc.WorkerLifecycleServiceStub(channel)
        deadline = time.monotonic() + DEADLINE_S
        while lifecycle.GetInfo(worker_pb2.WorkerLifecycleServiceGetInfoRequest(), timeout=DEADLINE_S).num_requests:
            assert time.monotonic() < deadline, "a request is left"  # the worker forgets it just after its stream has ended
            time.sleep(0.1)
    assert psutil.Process(worker.process.pid).num_threads() <= children + 20
    # A profile's name chooses no place: all there is lies in the one directory.
    outside = [path for path in socket_directory.iterdir() if path.name not in ("worker.sock", "log", "profiles")]
    assert not outside
