"""Updates of the weights of a library's model: real processes, tiny models."""

import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import services_in_process
from tests.weight_files import save_weights, whole_model
from tetrad import LLM, SamplingParams
from tetrad.frontend.request.weight_versions import WeightVersionSpan
from tetrad.library import weight_files
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import FailedPrecondition, InvalidRequest, ModelError, NotFound, Unsupported, UnsupportedArgument

OPTIONS = {"device": "cpu", "threads": 1, "max_model_len": 512, "kv_cache_memory_gib": 0.1, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [{"prompt_token_ids": [7 + number, *range(20, 60), number]} for number in range(4)]


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("weights") / "own"
    directory.mkdir()
    return save_tiny_model(directory)


@pytest.fixture(scope="module")
def second(own) -> Path:
    return save_weights(own, own.parent / "second", 2)


@pytest.fixture(scope="module")
def third(own) -> Path:
    return save_weights(own, own.parent / "third", 3)


@pytest.fixture(scope="module")
def expected(own, second, third) -> dict[str, list[list[int]]]:
    """The tokens of services that were started with each of the weights."""
    found = {}
    for path in (second, third):
        whole = whole_model(own, path, own.parent / f"whole-{path.name}")
        with services_in_process(), LLM(str(whole), **OPTIONS) as llm:
            found[path.name] = tokens(llm.generate(PROMPTS, GREEDY))
    return found


@pytest.fixture(scope="module")
def llm(own):
    with LLM(str(own), **OPTIONS) as made:
        yield made


def tokens(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def worker_of(llm) -> psutil.Process:
    [pid] = llm.collective_rpc("get_pid")
    return psutil.Process(pid)


def engine_core_of(llm) -> psutil.Process:
    [found] = [each for each in worker_of(llm).parent().children() if "tetrad.engine_core_svc" in each.cmdline()]
    return found


def test_tokens_after_an_update_are_those_of_a_fresh_start(llm, second, expected):
    before = llm.generate(PROMPTS, GREEDY)

    version = llm.update_weights_from_disk(str(second), "step-2")
    after = llm.generate(PROMPTS, GREEDY)
    alone = [llm.generate([prompt], GREEDY)[0] for prompt in PROMPTS]

    assert (version, llm.get_weight_version()) == ("step-2", "step-2")
    assert tokens(after) == expected["second"] == tokens(alone)
    assert tokens(before) != tokens(after)
    assert [output.num_cached_tokens for output in after] == [0] * len(PROMPTS)
    assert after[0].outputs[0].weight_versions == (WeightVersionSpan("step-2", 0, 12),)


def test_vllms_calls_update_the_weights(llm, third, expected):
    llm.init_weight_transfer_engine({"init_info": {"backend": "disk"}})
    llm.start_weight_update()
    llm.update_weights({"update_info": {"path": str(third)}})
    llm.finish_weight_update(weight_version="3")

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["third"]
    assert llm.get_weight_version() == "3"


def test_reload_weights_is_a_method_of_the_workers(llm, second, expected):
    assert llm.collective_rpc("reload_weights", kwargs={"weights_path": str(second)}) == [None]

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["second"]


def test_tensors_of_the_program_become_the_weights(llm, third, expected, monkeypatch):
    """Several files, of which a worker that is killed reads all again."""
    monkeypatch.setattr(weight_files, "_MOST_FILE_BYTES", 40_000)
    tensors = load_file(third / "model.safetensors")

    assert llm.update_weights_from_tensors(iter(tensors.items()), "tensors") == "tensors"
    found = tokens(llm.generate(PROMPTS, GREEDY))
    worker_of(llm).send_signal(signal.SIGKILL)

    assert found == expected["third"] == tokens(llm.generate(PROMPTS, GREEDY))
    with pytest.raises(ModelError, match="has no tensor"):
        llm.update_weights_from_tensors({name: each for name, each in tensors.items() if "down_proj" not in name})
    with pytest.raises(InvalidRequest, match="must be a torch tensor of floats or integers, got list"):
        llm.update_weights_from_tensors([("lm_head.weight", [1.0])])


def test_a_version_can_be_renamed(llm):
    llm.update_weight_version("renamed")

    assert llm.get_weight_version() == "renamed"
    assert llm.generate(PROMPTS[:1], GREEDY)[0].outputs[0].weight_versions == (WeightVersionSpan("renamed", 0, 12),)


def test_a_failed_update_changes_nothing(llm, own, second, expected, tmp_path):
    llm.update_weights_from_disk(str(second), "good")
    wider = {
        name: torch.zeros(3, 5) if "down_proj" in name else each for name, each in load_file(own / "model.safetensors").items()
    }
    save_file(wider, tmp_path / "model.safetensors")

    with pytest.raises(NotFound, match="no such directory"):
        llm.update_weights_from_disk("/nowhere/at/all")
    with pytest.raises(ModelError, match=r"down_proj.weight has shape \(3, 5\), but that of the served model has \(64, 96\)"):
        llm.update_weights_from_disk(str(tmp_path))
    with pytest.raises(FailedPrecondition, match="StartWeightUpdate"):
        llm.finish_weight_update()
    with pytest.raises(Unsupported, match="nccl"):
        llm.init_weight_transfer_engine({"init_info": {"backend": "nccl"}})
    with pytest.raises(InvalidRequest, match="names"):
        llm.start_weight_update()
        llm.update_weights({"update_info": {"path": str(second), "names": ["a"]}})
    with pytest.raises(UnsupportedArgument, match="draft"):
        llm.start_draft_weight_update()

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["second"]
    assert llm.get_weight_version() == "good"


@pytest.mark.parametrize("process_of", [worker_of, engine_core_of])
def test_a_process_that_is_killed_after_an_update_comes_back_with_its_weights(llm, third, expected, process_of):
    llm.update_weights_from_disk(str(third), "step-3")

    process_of(llm).send_signal(signal.SIGKILL)

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["third"]
    assert llm.get_weight_version() == "step-3"


def test_changed_files_are_not_taken_for_the_update_and_the_next_update_serves(llm, own, second, expected):
    """A worker dies between the save of a trainer and its next update: what the engine waits for is that update."""
    path = save_weights(own, own.parent / "overwritten", 4)
    llm.update_weights_from_disk(str(path), "step-4")
    save_file(load_file(second / "model.safetensors"), path / "model.safetensors")
    worker_of(llm).send_signal(signal.SIGKILL)

    llm.update_weights_from_disk(str(path), "step-5")

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["second"]
    assert llm.get_weight_version() == "step-5"


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_sleeps_wakes_up_with_the_new_weights(llm, second, third, expected, level):
    llm.update_weights_from_disk(str(second), "step-2")
    llm.sleep(level)

    llm.update_weights_from_disk(str(third), "step-3")
    assert llm.is_sleeping()
    llm.wake_up()

    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["third"]


def test_the_kv_cache_gives_its_memory_up_for_an_update(llm, second, third, expected):
    """vLLM's order of calls for a trainer on the same device."""
    llm.update_weights_from_disk(str(second))

    llm.release_kv_cache_memory()
    asleep = llm.is_sleeping()
    llm.update_weights_from_disk(str(third), "3")
    llm.wake_up(tags=["kv_cache"])

    assert asleep
    assert not llm.is_sleeping()
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected["third"]


@pytest.mark.usefixtures("services_here")
async def test_async_programs_have_the_same_calls(own, third, expected):
    async with AsyncLLM.from_engine_args(EngineArgs(model=str(own), **OPTIONS)) as llm:
        await llm.init_weight_transfer_engine({"init_info": {}})
        before = await llm.get_weight_version()
        version = await llm.update_weights_from_tensors(load_file(third / "model.safetensors"), "tensors")
        stream = llm.generate(PROMPTS[0], GREEDY, "1")
        *_, last = [output async for output in stream]
        await llm.update_weight_version("renamed")

        assert (before, version, await llm.get_weight_version()) == ("default", "tensors", "renamed")
        assert list(last.outputs[0].token_ids) == expected["third"][0]
        assert last.outputs[0].weight_versions == (WeightVersionSpan("tensors", 0, 12),)
        await llm.shutdown_weight_transfer_engine()
