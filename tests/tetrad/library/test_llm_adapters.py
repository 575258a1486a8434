"""Adapters and prompt embeddings of the LLM classes: real processes, a tiny model."""

import signal

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.test_prompt_adapters import save_prompt_adapter
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tetrad import LLM, LoRARequest, SamplingParams
from tetrad.services.errors import FailedPrecondition, NotFound, UnsupportedArgument

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True, detokenize=False)
PROMPT = {"prompt_token_ids": [7, 8, 9]}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = save_tiny_model(tmp_path_factory.mktemp("llm"))
    save_lora(path / "lora", AutoModelForCausalLM.from_pretrained(path), "q_proj|down_proj|lm_head", rank=4, seed=3)
    save_prompt_adapter(path / "prompt", 64, seed=1)
    return path


@pytest.fixture(scope="module")
def reference(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def llm(directory):
    with LLM(
        str(directory), device="cpu", threads=1, enable_lora=True, max_loras=2, max_model_len=512, kv_cache_memory_gib=0.1
    ) as made:
        yield made


def tokens(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@torch.inference_mode()
def greedy(model, ids: list[int], count: int, virtual: torch.Tensor | None = None) -> list[int]:
    rows = model.get_input_embeddings()(torch.tensor(ids))
    given = rows if virtual is None else torch.cat([virtual, rows])
    made = model.generate(
        inputs_embeds=given[None], max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=-1
    )
    return made[0].tolist()


def test_adapters_embeddings_and_ids_of_one_call(llm, directory, reference):
    embeds = reference.get_input_embeddings().weight.detach()[[7, 8, 9]]
    lora = LoRARequest("lora", 1, str(directory / "lora"))
    loras = [None, lora, LoRARequest("prompt", 2, str(directory / "prompt")), lora]

    found = tokens(llm.generate([PROMPT, PROMPT, PROMPT, {"prompt_embeds": embeds}], GREEDY, lora_request=loras))

    changed = greedy(merged(reference, directory / "lora"), [7, 8, 9], 8)
    assert found[0] == greedy(reference, [7, 8, 9], 8)
    assert found[1] == found[3] == changed
    assert found[2] not in (found[0], found[1])
    said = llm.chat([{"role": "user", "content": "hi"}], GREEDY, lora_request=lora, chat_template=TEMPLATE)
    assert tokens(said) == [greedy(merged(reference, directory / "lora"), said[0].prompt_token_ids, 8)]


def test_operations_of_the_engine(llm, directory):
    engine = llm.llm_engine
    lora, prompt = LoRARequest("lora", 1, str(directory / "lora")), LoRARequest("prompt", 2, str(directory / "prompt"))

    assert engine.add_lora(lora)
    assert engine.add_lora(prompt)
    assert engine.pin_lora(1)
    assert engine.pin_lora(2)
    assert engine.list_loras() == {1, 2}
    assert engine.remove_lora(2)
    assert not engine.remove_lora(2)
    assert engine.list_loras() == {1}
    with pytest.raises(NotFound):
        engine.pin_lora(3)
    with pytest.raises(NotFound, match="There is no adapter at"):
        engine.add_lora(LoRARequest("none", 4, str(directory / "none")))
    save_lora(directory / "large", AutoModelForCausalLM.from_pretrained(directory), "q_proj", rank=32)
    with pytest.raises(FailedPrecondition, match=r"rank 32; the limit is 16 \(max_lora_rank\)"):
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("large", 5, str(directory / "large")))
    with pytest.raises(UnsupportedArgument, match="A prompt adapter is a lora_request here"):
        llm.generate(PROMPT, GREEDY, prompt_adapter_request=prompt)


def test_killed_worker_changes_no_token(llm, directory):
    lora, prompt = LoRARequest("lora", 1, str(directory / "lora")), LoRARequest("prompt", 2, str(directory / "prompt"))
    loras = [None, lora, prompt]
    undisturbed = tokens(llm.generate([PROMPT] * 3, LONG, lora_request=loras))
    # The services of an LLM are children of its process; those of other tests' servers are grandchildren.
    [worker] = [each for each in psutil.Process().children() if "tetrad.worker_svc" in each.cmdline()]
    llm.enqueue([PROMPT] * 3, LONG, lora_request=loras)
    worker.send_signal(signal.SIGKILL)

    found = tokens(llm.wait_for_completion())

    assert found == undisturbed
    assert tokens(llm.generate([PROMPT] * 3, LONG, lora_request=loras)) == undisturbed
