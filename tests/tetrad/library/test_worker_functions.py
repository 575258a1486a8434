"""apply_model, and functions in collective_rpc: run in workers of a program's own stack alone, and end within their timeout."""

import asyncio
import time

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.tetrad.library import worker_functions
from tetrad import LLM, EngineArgs, SamplingParams
from tetrad.library.functions import name_of
from tetrad.services.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, TetradError
from tetrad.stack.local_stack import LocalStack
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import WorkerServer
from tetrad.worker_svc.worker.functions import function_methods

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("functions")))


@pytest.fixture(scope="module")
def llm(model):
    options = {"device": "cpu", "threads": 1, "max_model_len": 128, "kv_cache_memory_gib": 0.05}
    with LLM(model, allow_functions=True, **options) as made:
        yield made


def test_a_function_gets_the_loaded_model_or_the_worker(llm):
    [[vocab_size, kind, pid]] = llm.apply_model(worker_functions.size_of)

    assert (kind, vocab_size) == ("CpuModel", llm.llm_engine.get_model_config().get_vocab_size())
    assert [pid] == llm.collective_rpc("get_pid")
    assert llm.llm_engine.apply_model(worker_functions.size_of) == [[vocab_size, kind, pid]]
    assert llm.collective_rpc(worker_functions.add, args=(1,), kwargs={"second": 2}, timeout=20) == [[3, "Worker"]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda llm: llm.collective_rpc(worker_functions.fail), "worker_functions:fail raised RuntimeError: on purpose"),
        (lambda llm: llm.collective_rpc(worker_functions.opaque), "returned object, which JSON has no form for"),
        (lambda llm: llm.collective_rpc(worker_functions.add), "raised TypeError"),
        (lambda llm: llm.apply_model(lambda model: 1), "must stand at the top of a module other than __main__"),
        (lambda llm: llm.apply_model("size_of"), "func must be a function, got the name 'size_of'"),
        (lambda llm: llm.collective_rpc("call_function", args=("no_such_module:f",)), "cannot be imported in the worker"),
        (
            lambda llm: llm.collective_rpc("call_function", args=("tests.tetrad.library.worker_functions:NOT_A_FUNCTION",)),
            "is a int, no function",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason_and_disturbs_nothing(llm, call, text):
    with pytest.raises(InvalidRequest, match=text):
        call(llm)

    assert len(llm.generate("a", GREEDY, use_tqdm=False)) == 1


def test_a_function_that_outlives_its_timeout_ends_its_worker_and_no_request(llm):
    """The worker comes back as another process, and tokens are the same."""
    expected = llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    [pid] = llm.collective_rpc("get_pid")

    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        llm.collective_rpc(worker_functions.sleep, timeout=0.5, args=(600,))
    assert time.monotonic() - began < 10

    assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected
    assert llm.collective_rpc("get_pid") != [pid]


async def test_a_server_and_a_worker_that_others_reach_run_no_functions(model):
    settings = await asyncio.to_thread(EngineArgs(model=model, device="cpu", allow_functions=True).stack_settings)
    with pytest.raises(InvalidRequest, match="allow_functions is for the own services of a program"):
        LocalStack(settings, serve=True)
    with pytest.raises(FailedPrecondition, match=r"allow_functions needs a Unix socket, got listen 127\.0\.0\.1:0"):
        await WorkerServer.start(WorkerSettings(device="sim", allow_functions=True, listen="127.0.0.1:0"))


def test_a_worker_without_the_option_imports_nothing():
    methods = function_methods(None, are_allowed=False)

    for method in methods.values():
        with pytest.raises(TetradError, match=r"runs no functions of programs; start with LLM\(allow_functions=True\)"):
            method("no_such_module:f", [], {})


def test_functions_are_named_by_their_modules():
    assert name_of(worker_functions.add) == "tests.tetrad.library.worker_functions:add"
