"""Requests of several adapters and of the base model in one batch bring the tokens of merged checkpoints."""

import json

import numpy as np
import pytest
import torch

from tests.lora_files import merged, merged_experts, save_expert_lora, save_lora
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import ModelError, NotFound, TetradError
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import PromptEmbeds, SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.model_facts.tensors import tensor_shapes
from tetrad.worker_svc.native.loras import NativeLoras
from tools.models_page import NOT_ADAPTED_OF

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 5, 17, 70, 40, 33)]
LIMITS = LoraLimits(max_loras=4, max_lora_rank=16, max_cpu_loras=4)
EVERYTHING = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|lm_head|embed_tokens"
NUM_TOKENS = 16
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)


@pytest.fixture(scope="module", params=["auto", "torch"])
def load_adapted(request):
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=request.param))
    device.set_up()
    return lambda path, **options: device.load_model(LoadRequest(str(path), path, loras=LIMITS, **options), lambda *_: None)


@pytest.fixture(scope="module")
def adapted(load_adapted, tiny_llama, tmp_path_factory):
    """The tiny model with two adapters: A of rank 8 on everything, B of rank 16 on other modules."""
    directory = tmp_path_factory.mktemp("adapters")
    path, reference = tiny_llama
    a = save_lora(directory / "a", reference, EVERYTHING, rank=8, seed=1)
    fields = {"rank": 16, "alpha": 8, "seed": 2, "use_rslora": True, "dtype": torch.bfloat16}
    b = save_lora(directory / "b", reference, "k_proj|up_proj|o_proj", **fields)
    model = load_adapted(path)
    for lora_id, its in ((1, a), (2, b)):
        model.loras.install(lora_id, model.loras.read(its))
    return model, {0: reference, 1: merged(reference, a), 2: merged(reference, b)}


@pytest.mark.parametrize("chunk", [7, 1000])
def test_mixed_batch_equals_merged_checkpoints(chunk, adapted, make_driver, assert_greedy):
    model, references = adapted
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS * 2):
        driver.add(handle, prompt, LOGPROBS, lora_id=handle % 3)

    outputs = driver.generate(NUM_TOKENS, chunk=chunk)

    for handle, prompt in enumerate(PROMPTS * 2):
        expected = assert_greedy(references[handle % 3], prompt, outputs[handle])
        found = [values[0] for _, values, _ in driver.requests[handle].logprobs]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        if len(prompt) > 1:
            _check_prompt_logprobs(references[handle % 3], prompt, driver.requests[handle])


@torch.inference_mode()
def _check_prompt_logprobs(reference, prompt, request):
    expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
    [(_, _, found)] = request.prompt_logprobs
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


def test_native_kernels_apply_adapters(tiny_llama):
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="native"))
    device.set_up()

    model = device.load_model(LoadRequest(str(tiny_llama[0]), tiny_llama[0], loras=LIMITS), lambda *_: None)

    assert isinstance(model.loras, NativeLoras)


def test_seeded_tokens_do_not_depend_on_the_batch(adapted, make_driver):
    model, _ = adapted
    sampling = SamplingSpec(temperature=1.0, seed=7)
    together = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        together.add(handle, prompt, sampling, lora_id=handle % 3)
    outputs = together.generate(NUM_TOKENS)

    for handle, prompt in enumerate(PROMPTS):
        alone = make_driver(model)
        alone.add(handle, prompt, sampling, lora_id=handle % 3)

        assert alone.generate(NUM_TOKENS)[handle] == outputs[handle]


def test_request_without_its_adapter_fails_alone(adapted, make_driver, assert_greedy):
    model, references = adapted
    driver = make_driver(model)
    driver.add(0, PROMPTS[1], lora_id=9)
    driver.add(1, PROMPTS[1], lora_id=1)

    result = driver.runner.execute(driver.plan({0: 5, 1: 5}))

    [(handle, error)] = result.failures
    assert (handle, error.reason) == (0, "LORA_NOT_LOADED")
    assert result.handles.tolist() == [1]
    assert_greedy(references[1], PROMPTS[1], result.token_ids.tolist())


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("phi3", "qkv_proj|gate_up_proj|o_proj|down_proj"),
        ("qwen3", EVERYTHING),
        ("gpt2", "c_attn|c_proj|c_fc|lm_head|wte"),
        ("deepseek_v3", "q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|shared_experts.up_proj"),
        ("qwen2_moe", "q_proj|v_proj|o_proj|shared_expert.up_proj|shared_expert.down_proj"),
        ("qwen3_5", "q_proj|k_proj|o_proj|in_proj_qkv|in_proj_z|in_proj_b|out_proj|up_proj"),
        ("qwen3_next", "q_proj|in_proj_qkvz|in_proj_ba|out_proj"),
        ("falcon_h1", "q_proj|in_proj|out_proj|gate_proj|down_proj"),
        ("jamba", "q_proj|in_proj|x_proj|out_proj|up_proj"),
        ("mamba", "in_proj|x_proj|dt_proj|out_proj"),
        ("mamba2", "in_proj|out_proj"),
        ("bloom", "query_key_value|dense|dense_h_to_4h|dense_4h_to_h|word_embeddings"),
        ("mpt with bounds", "Wqkv|out_proj|up_proj|down_proj"),
        ("gpt_neox", "query_key_value|dense|dense_4h_to_h|lm_head"),
        ("nemotron_h with biases", "embeddings|q_proj|o_proj|in_proj|out_proj|mixer.up_proj|shared_experts.down_proj"),
    ],
)
def test_fused_and_renamed_modules(family, modules, load_adapted, tmp_path, make_driver, assert_greedy):
    reference = save_family(tmp_path / "model", family)
    adapter = save_lora(
        tmp_path / "adapter", reference, modules, rank=4, rank_pattern={"o_proj": 8}, alpha_pattern={"o_proj": 4}
    )
    model = load_adapted(tmp_path / "model")
    model.loras.install(5, model.loras.read(adapter))
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, lora_id=5 * (handle % 2))

    outputs = driver.generate(NUM_TOKENS)

    changed = merged(reference, adapter)
    for handle, prompt in enumerate(PROMPTS):
        assert_greedy(changed if handle % 2 else reference, prompt, outputs[handle])


@pytest.mark.parametrize(
    ("family", "renamed"),
    [
        ("qwen3_moe", {}),
        ("mixtral", {"mlp.experts": "block_sparse_moe.experts", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}),
        ("granite_moe", None),
        ("gpt_oss", None),
    ],
)
def test_experts_take_adapters_in_both_forms_of_peft(family, renamed, load_adapted, tmp_path, make_driver, assert_greedy):
    """One batch of the base, of tensors of all experts together, and of modules of their own; None: PEFT writes none."""
    reference = save_family(tmp_path / "model", family)
    model, references = load_adapted(tmp_path / "model"), [reference]
    for lora_id, forms in enumerate(({"is_stacked": True}, {"renamed": renamed}), 1):
        if forms.get("renamed", {}) is not None:
            adapter = save_expert_lora(tmp_path / str(lora_id), reference, rank=4 * lora_id, seed=lora_id, **forms)
            model.loras.install(lora_id, model.loras.read(adapter))
            references.append(merged_experts(reference, adapter, renamed))
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS, lora_id=handle % len(references))

    outputs = driver.generate(NUM_TOKENS, chunk=25)

    for handle, prompt in enumerate(PROMPTS):
        assert_greedy(references[handle % len(references)], prompt, outputs[handle])
        if len(prompt) > 1:
            _check_prompt_logprobs(references[handle % len(references)], prompt, driver.requests[handle])


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen2_moe", "deepseek_v3", "gpt_oss", "falcon_h1", "qwen3_next", "gpt_neox", "mamba with biases", "jamba"],
)
def test_adapters_may_change_every_matrix_but_those_that_the_documentation_names(family, load_adapted, tmp_path):
    save_family(tmp_path, family)
    names = {"routers, experts on the GPU": (".router", "shared_expert_gate"), "`kv_b_proj`": (".kv_b_proj",)}
    kept = tuple(each for said in NOT_ADAPTED_OF.values() for each in names[said])
    shapes = tensor_shapes(read_config(read_model_config(tmp_path)))
    matrices = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2 and name.endswith(".weight")}

    sites = load_adapted(tmp_path).loras.sites

    assert set(sites) == {name for name in matrices if not any(part in name for part in kept)}


def test_prompt_embeds_bring_the_tokens_of_their_ids(adapted, tiny_llama, make_driver, assert_greedy):
    model, references = adapted
    table = tiny_llama[1].get_input_embeddings().weight.detach().numpy()
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        positions = np.arange(0, len(prompt), 1 + handle % 2)
        embeds = PromptEmbeds(positions, table[np.array(prompt)[positions]])
        masked = [0 if place in positions else token for place, token in enumerate(prompt)]
        driver.add(handle, masked, prompt_embeds=embeds, lora_id=2 * (handle % 2))

    outputs = driver.generate(NUM_TOKENS, chunk=9)

    for handle, prompt in enumerate(PROMPTS):
        assert_greedy(references[2 * (handle % 2)], prompt, outputs[handle])


def test_int8_base_keeps_its_own_error_only(tiny_llama, tmp_path, make_driver):
    """Beside an adapter, quantized weights differ from the float ones by no more than without."""
    path, reference = tiny_llama
    adapter = save_lora(tmp_path, reference, "q_proj|down_proj|up_proj|lm_head", seed=3)
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="native"))
    device.set_up()
    errors = []
    for lora_id, expected in ((0, reference), (1, merged(reference, adapter))):
        model = device.load_model(LoadRequest(str(path), path, quantization="int8", loras=LIMITS), lambda *_: None)
        model.loras.install(1, model.loras.read(adapter))
        driver = make_driver(model)
        driver.add(0, PROMPTS[3], LOGPROBS, lora_id=lora_id)
        driver.generate(1)
        with torch.inference_mode():
            logprobs = expected(torch.tensor([PROMPTS[3]])).logits[0].log_softmax(-1)[range(69), PROMPTS[3][1:]]
        errors.append(float(np.abs(driver.requests[0].prompt_logprobs[0][2][:, 0] - logprobs.numpy()).mean()))

    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": None}, "lacks r"),
        ({"r": 3}, "rank 8, but adapter_config.json says 3"),
    ],
)
def test_adapter_that_cannot_be_used_is_refused_by_name(config, text, adapted, tiny_llama, tmp_path):
    save_lora(tmp_path, tiny_llama[1], "q_proj")
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))

    with pytest.raises(ModelError, match=text):
        adapted[0].loras.read(tmp_path)


def test_wrong_files_are_refused(adapted, tiny_llama, tmp_path, save_tiny_model):
    loras = adapted[0].loras
    cases: dict[str, tuple[type[TetradError], str]] = {}
    save_lora(tmp_path / "large", tiny_llama[1], "q_proj", rank=32)
    cases["large"] = ModelError, "rank 32; the limit is 16"
    other = save_tiny_model(tmp_path / "model", "LlamaForCausalLM", {"hidden_size": 120})
    save_lora(tmp_path / "other", other, "q_proj")
    cases["other"] = ModelError, "another base model"
    save_lora(tmp_path / "norms", torch.nn.ModuleDict({"extra": torch.nn.Linear(4, 4)}), "extra")
    cases["norms"] = ModelError, "does not have"
    cases["absent"] = NotFound, "no adapter"
    save_lora(tmp_path / "broken", tiny_llama[1], "q_proj")
    (tmp_path / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors")
    cases["broken"] = ModelError, "not a whole safetensors file"
    for name, (kind, text) in cases.items():
        with pytest.raises(kind, match=text):
            loras.read(tmp_path / name)
