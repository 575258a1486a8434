"""dtype=bfloat16 on the CPU device: near transformers' log-probabilities, and the same tokens however steps are composed."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.test_parity import LAYOUT, NUM_TOKENS, PROMPTS, generated
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.pooling.checkpoints import save_encoder
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.native.team import Team

NATIVE = ("llama", "qwen2", "qwen3", "gemma3", "mixtral", "gpt_oss", "olmo2", "gpt2")
ON_TORCH = ("deepseek_v3", "jamba", "mamba", "mamba2", "qwen3_next", "falcon_h1")
PROMPT_LOGPROBS = SamplingSpec(temperature=0.0, num_prompt_logprobs=0)


@pytest.fixture(scope="module")
def native_cpu() -> CpuDevice:
    device = CpuDevice(WorkerSettings(threads=2))
    if not device._models.team or not device._models.team.has_pair_products:
        pytest.skip("this processor does not multiply bfloat16")
    return device


@dataclass(frozen=True)
class Case:
    directory: Path
    reference: torch.nn.Module  # float32
    model: object
    expected: dict[int, list[int]]  # in one batch
    is_native: bool

    def driver(self) -> Driver:
        return Driver(self.model.make_runner(LAYOUT), LAYOUT)


@pytest.fixture(scope="module", params=[*NATIVE, *ON_TORCH])
def case(request, tmp_path_factory, native_cpu) -> Case:
    directory = tmp_path_factory.mktemp(request.param)
    reference = save_family(directory, request.param)
    model = native_cpu.load_model(LoadRequest(str(directory), directory, dtype="bfloat16"), lambda *_: None)
    return Case(directory, reference, model, generated(Driver(model.make_runner(LAYOUT), LAYOUT)), request.param in NATIVE)


@torch.inference_mode()
def nats(reference: torch.nn.Module, prompt: list[int]) -> np.ndarray:
    """Return the negative log-probability of each token of a prompt but the first."""
    logits = reference(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)
    return -logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].numpy()


def test_log_probabilities_are_as_near_as_those_of_transformers_in_bfloat16(case):
    driver, prompt = case.driver(), PROMPTS[-2]
    driver.add(0, prompt, PROMPT_LOGPROBS)
    driver.step({0: len(prompt)})
    found = -driver.remove(0).prompt_logprobs[0][2][:, 0]

    exact = nats(case.reference, prompt)
    narrow = nats(copy.deepcopy(case.reference).bfloat16(), prompt)
    assert np.abs(found - exact).mean() <= np.abs(narrow - exact).mean()


def test_tokens_are_the_same_alone_and_in_chunks(case):
    alone = case.driver()
    for handle in (0, 3, len(PROMPTS) - 1):  # one token, one token more than a block, the longest
        alone.add(handle, PROMPTS[handle])
        assert alone.generate(NUM_TOKENS)[handle] == case.expected[handle]
        alone.remove(handle)

    assert generated(case.driver(), chunk=48) == case.expected


def test_weights_take_two_bytes_and_the_model_says_its_type(case, native_cpu):
    whole = native_cpu.load_model(LoadRequest(str(case.directory), case.directory, dtype="float32"), lambda *_: None)

    assert case.model.info.dtype == "bfloat16"
    assert case.model.info.weights_size_bytes <= (0.55 if case.is_native else 0.7) * whole.info.weights_size_bytes


def load(device: CpuDevice, directory: Path, **options: object) -> object:
    return device.load_model(LoadRequest(str(directory), directory, **options), lambda *_: None)


def test_a_processor_without_such_products_refuses_the_type(monkeypatch, tiny_llama):
    monkeypatch.setattr(Team, "has_pair_products", property(lambda _: False))
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="native"))

    with pytest.raises(ModelError, match=r"dtype bfloat16 needs a processor with AVX512_BF16.*use auto or float32"):
        load(device, tiny_llama[0], dtype="bfloat16")


@pytest.mark.parametrize(
    ("kernels", "options", "reason"),
    [
        ("torch", {"dtype": "bfloat16"}, "needs the native kernels, which are not used here"),
        ("native", {"dtype": "float16"}, "dtype float16 is not supported on the cpu device; use auto, float32 or bfloat16"),
        ("native", {"dtype": "bfloat16", "quantization": "int8"}, "quantization int8 has activations of 8 bits"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(kernels, options, reason, monkeypatch, tiny_llama):
    monkeypatch.setattr(Team, "has_pair_products", property(lambda _: True))
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels))

    with pytest.raises(ModelError, match=reason):
        load(device, tiny_llama[0], **options)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("helium", "a model of transformers' code"), ("bert", "an encoder"), ("gemma3", "a bidirectional decoder")],
)
def test_a_model_that_computes_in_float32_only_refuses_the_type(family, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(Team, "has_pair_products", property(lambda _: True))
    if family == "bert":
        save_encoder(tmp_path, (BertConfig, BertModel))
    else:
        save_family(tmp_path, family)
    overrides = '{"use_bidirectional_attention": true}' if family == "gemma3" else ""
    pooled = {"runner": "pooling", "hf_overrides_json": overrides} if family == "gemma3" else {}

    with pytest.raises(ModelError, match=f"dtype bfloat16 is not for {kind} on the cpu device"):
        load(CpuDevice(WorkerSettings(threads=1)), tmp_path, dtype="bfloat16", **pooled)
