"""No step waits for the device: no value of a tensor reaches the host before its download is waited for.

On a GPU torch itself detects this (benchmarks/gpu.py); here calls that would synchronise are intercepted. The interpreter
reads kernel arguments, so it is exempt.
"""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.eagle3_files import save_eagle3
from tests.lora_files import save_lora
from tests.mtp_files import save_mtp
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import TINY, layout_of, record_graphs
from tests.worker_svc.cuda.watching import execute
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.pooling.checkpoints import CLASSIFIERS, save_encoder
from tests.worker_svc.pooling.runs import plan_of
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import DraftTokens, GrammarRows, SamplingSpec
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.cuda.host_metadata import HostMetadata

SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0),
    "drawn": SamplingSpec(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=3),
    "logprobs": SamplingSpec(temperature=0.0, num_logprobs=3),
    "logprobs of listed ids": SamplingSpec(temperature=0.0, logprob_token_ids=(3, 4)),
    "prompt logprobs": SamplingSpec(temperature=0.0, num_prompt_logprobs=1),
    "penalties": SamplingSpec(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.1),
    "masks": SamplingSpec(
        temperature=0.0, min_tokens=2, stop_token_ids=(5,), allowed_token_ids=tuple(range(40, 90)), logit_bias={50: 3.0}
    ),
    "thinking budget": SamplingSpec(temperature=0.0, thinking_token_budget=1, thinking_end_ids=(7, 8)),
    "bad words": SamplingSpec(temperature=0.0, bad_words=((7,), (8, 9))),
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("uses_graphs", [False, True])
def test_a_step_is_launched_without_waiting(name, uses_graphs, tiny_cuda, watch):
    layout = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32)
    runner = tiny_cuda.make_runner(layout)
    if uses_graphs:
        record_graphs(runner)
    driver = Driver(runner, layout)
    driver.add(0, [5, 6, 7], SAMPLINGS["greedy"])
    driver.add(1, [8, 9, 10, 11], SAMPLINGS[name])
    words = GrammarRows(np.array([0]), np.full((1, 10), 0xFFFFFFFF, np.uint32))

    prompts = execute(driver, watch, {0: 3, 1: 4}, grammar=words)
    decodes = execute(driver, watch, {0: 1, 1: 1})
    drafts = DraftTokens(np.array([0, 1]), np.array([1, 2]), np.array([7, 8, 9]))
    verifying = execute(driver, watch, {0: 2, 1: 3}, drafts=drafts)

    assert prompts == decodes == verifying == []


def test_blocks_are_moved_without_waiting(tiny_cuda, watch):
    layout = KvLayout(20, 16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32, num_host_blocks=2)
    driver = Driver(tiny_cuda.make_runner(layout), layout)
    driver.add(0, [5, 6, 7])
    pairs = np.array([[1, 2], [0, 1]])

    found = execute(driver, watch, {0: 3}, swap_out=(pairs[0], pairs[1]), swap_in=(pairs[1], pairs[0] + 2))

    assert found == []


def test_layers_that_are_offloaded_are_fetched_without_waiting(tmp_path, load_cuda, watch):
    save_tiny(tmp_path, tiny_config("LlamaForCausalLM", **{**TINY, "num_hidden_layers": 3}))
    layout = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32)
    driver = Driver(load_cuda(tmp_path, cpu_offload_gb=1).make_runner(layout), layout)
    driver.add(0, [5, 6, 7])

    assert execute(driver, watch, {0: 3}) == []


@pytest.mark.parametrize("uses_graphs", [False, True])
def test_adapters_are_brought_to_the_device_without_waiting(uses_graphs, tiny_path, load_cuda, watch, tmp_path):
    layout = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=1, max_num_batched_tokens=32)
    model = load_cuda(tiny_path, loras=LoraLimits(max_loras=1, max_lora_rank=8, max_cpu_loras=2))
    adapter = save_lora(tmp_path, AutoModelForCausalLM.from_pretrained(tiny_path), "q_proj|down_proj|embed_tokens")
    for lora_id in (1, 2):
        model.loras.install(lora_id, model.loras.read(adapter))
    runner = model.make_runner(layout)
    if uses_graphs:
        record_graphs(runner)
    driver = Driver(runner, layout)
    driver.add(0, [5, 6, 7], lora_id=2)  # the slot has the first one

    prompt = execute(driver, watch, {0: 3})
    decode = execute(driver, watch, {0: 1})

    assert prompt == decode == []


@pytest.mark.parametrize("uses_graphs", [False, True])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp"])
def test_drafts_are_launched_without_waiting(method, uses_graphs, tmp_path, load_cuda, watch):
    """A step that verifies some, too, unless drafts are asked for after it: their number depends on it."""
    drafter = None
    if method == "mtp":
        save_mtp(tmp_path, "glm")
    else:
        save_tiny(tmp_path, tiny_config("LlamaForCausalLM", hidden_size=64, num_attention_heads=4))
        its_layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        drafter = tmp_path if method == "draft_model" else save_eagle3(tmp_path / "head", **its_layers)
    layout = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32)
    runner = load_cuda(tmp_path, draft_method=method, draft_path=drafter, num_draft_tokens=2).make_runner(layout)
    if uses_graphs:
        runner._runner.record(lambda: runner._drafts.record(lambda: None), "The drafter's graphs")
    driver = Driver(runner, layout)
    driver.add(0, [5, 6, 7], SAMPLINGS["greedy"])
    driver.add(1, [8, 9, 10, 11], SAMPLINGS["drawn"])

    prompts = execute(driver, watch, {0: 3, 1: 4}, num_spec_tokens=2)
    decodes = execute(driver, watch, {0: 1, 1: 1}, num_spec_tokens=2)
    drafts = DraftTokens(np.array([0, 1]), np.array([1, 2]), np.array([7, 8, 9]))
    verifying = execute(driver, watch, {0: 2, 1: 3}, drafts=drafts)

    assert prompts == decodes == verifying == []


@pytest.mark.parametrize("name", ["llama4", "mamba", "mamba2"])
def test_steps_that_the_host_prepares_are_launched_without_waiting(name, tmp_path, load_cuda, watch, monkeypatch):
    """Pages that are gathered in chunks, and states. The host reads tensors of its own."""
    prepare = HostMetadata.of

    def prepared(metadata, rows):
        with watch.off():
            return prepare(metadata, rows)

    monkeypatch.setattr(HostMetadata, "of", prepared)
    save_family(tmp_path, name)
    model = load_cuda(tmp_path)
    layout = layout_of(model, KvLayout(20, 16, max_model_len=256, max_num_seqs=2, max_num_batched_tokens=32))
    driver = Driver(model.make_runner(layout), layout)
    for handle in range(2):
        driver.add(handle, range(5, 9))

    chunks = execute(driver, watch, {0: 4, 1: 3})
    decodes = execute(driver, watch, {0: 1, 1: 1})
    drafts = DraftTokens(np.array([0, 1]), np.array([1, 2]), np.array([7, 8, 9]))
    verifying = execute(driver, watch, {0: 2, 1: 3}, drafts=drafts)

    assert chunks == decodes == verifying == []


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_answers_of_pooling_requests_are_launched_without_waiting(task, tiny_path, load_cuda, watch):
    model = load_cuda(tiny_path, runner="generate", convert="embed", pooler_config_json='{"pooling_type": "MEAN"}')
    layout = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32)
    driver = Driver(model.make_runner(layout), layout)
    driver.add(0, [5, 6, 7], SAMPLINGS["greedy"])
    driver.add(1, [8, 9, 10, 11], pooling=PoolingSpec(task))

    chunk = execute(driver, watch, {0: 3, 1: 2})
    end = execute(driver, watch, {0: 1, 1: 2})

    assert chunk == end == []


def test_a_step_of_an_encoder_is_launched_without_waiting(tmp_path, load_cuda, watch):
    """ModernBERT: windows, rotary positions, and prompts that are padded."""
    save_encoder(tmp_path, CLASSIFIERS["modernbert"])
    runner = load_cuda(tmp_path).make_runner(KvLayout(1, 16, 64, 8, 64))
    plan = plan_of([[5, 6, 7], [8, 9, 10, 11], [12]], [PoolingSpec("classify")] * 3)

    with watch:
        step = runner.execute(plan)

    assert watch.found == []
    assert len(step.wait().pooled) == 3


def test_the_watch_sees_what_would_wait(watch):
    with watch:
        tensor = torch.arange(4)
        tensor[tensor > 1]
        tensor.sum().item()
        tensor.numpy()
        tensor[torch.tensor([0, 1])] = 7

    assert watch.found == ["index", "_local_scalar_dense", "numpy", "index_put_"]
