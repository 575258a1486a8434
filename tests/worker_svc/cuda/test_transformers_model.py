"""Models of no described family on the CUDA device: transformers' code computes them, over the device's KV pages."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.models.own_code import has_run, save_own_code
from tests.worker_svc.pooling.checkpoints import save_modules
from tests.worker_svc.pooling.decoders import run_in_chunks
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest, LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.device.offload import tensors_in
from tetrad.worker_svc.devices.cuda import CudaDevice
from tetrad.worker_svc.devices.foreign_model import load_foreign_module
from tetrad.worker_svc.families.foreign import foreign_model

NUM_TOKENS = 4
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 40)]


def generated(model, num_tokens=NUM_TOKENS, sampling=None):
    driver = Driver(model.make_runner(SMALL), SMALL)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, **({} if sampling is None else {"sampling": sampling}))
    return driver.generate(num_tokens, chunk=30)


@pytest.mark.parametrize(
    ("name", "has_kernels"), [("helium", True), ("minicpm3", True), ("cohere2_moe", True), ("gemma4", False)]
)
@torch.inference_mode()
def test_the_model_generates_what_its_code_does(name, has_kernels, tmp_path, load_cuda):
    """Layers have windows, latent attention, experts, or heads of several sizes, which no kernel computes."""
    reference = save_family(tmp_path, name)
    model = load_cuda(tmp_path)

    outputs = generated(model)

    assert model.decoder.has_kernel_attention == has_kernels
    assert {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)} == outputs


@pytest.mark.parametrize("changes", [{"num_global_key_value_heads": 2}, {"global_head_dim": 16}])
@torch.inference_mode()
def test_layers_with_less_keys_and_values_than_others_take_a_part_of_their_slots(changes, tmp_path, load_cuda):
    """The layers with windows have fewer numbers a token than those without, or more."""
    reference = save_family(tmp_path, "gemma4", **changes)

    outputs = generated(load_cuda(tmp_path))

    assert {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)} == outputs


@pytest.mark.parametrize(("name", "dtype"), [("helium", "float16"), ("gemma4", "auto")])
@torch.inference_mode()
def test_in_half_precision_the_tokens_are_among_the_most_likely(name, dtype, tmp_path, load_cuda):
    """Helium runs in float16, because the interpreter of the kernels computes wrong products of bfloat16."""
    reference = save_family(tmp_path, name)
    model = load_cuda(tmp_path, dtype=dtype)

    outputs = generated(model)

    assert model.info.dtype == {"auto": "bfloat16"}.get(dtype, dtype)
    assert model.info.weights_size_bytes == 2 * model.info.num_parameters
    for handle, prompt in enumerate(PROMPTS):
        logits = reference(torch.tensor([prompt + outputs[handle][:-1]])).logits[0, len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(outputs[handle])[:, None])[:, 0]
        assert bool((chosen >= logits.amax(1) - 0.2 * logits.std(1)).all())


def test_seeded_tokens_are_those_of_the_cpu_device(tmp_path, load, load_cuda):
    save_family(tmp_path, "helium")
    sampling = SamplingSpec(temperature=1.0, top_p=0.9, seed=5)

    assert generated(load_cuda(tmp_path), 8, sampling) == generated(load(tmp_path), 8, sampling)


def test_a_sleeping_model_returns_to_the_device(tmp_path, load_cuda):
    save_family(tmp_path, "helium")
    model = load_cuda(tmp_path, dtype="float16")
    before = generated(model)
    weights = [tensor for tensor in tensors_in(model) if tensor.untyped_storage().resizable()]

    model.sleep()
    left_bytes = sum(tensor.untyped_storage().nbytes() for tensor in weights)
    model.wake_up()

    assert len(weights) >= model.info.num_layers
    assert left_bytes == 0
    assert generated(model) == before


def test_the_model_warms_up_after_its_largest_step(tmp_path, load_cuda):
    save_family(tmp_path, "helium")
    model, progress = load_cuda(tmp_path), []

    model.worst_case_bytes(16)
    model.make_runner(SMALL).warm_up(lambda *done_of_all: progress.append(done_of_all))

    assert progress[-1][0] == progress[-1][1] == len(progress)


def test_the_model_embeds(tmp_path, load, load_cuda):
    save_family(tmp_path, "helium")

    models = [device(tmp_path, runner="pooling") for device in (load, load_cuda)]
    wanted, found = (run_in_chunks(model.make_runner(SMALL), PROMPTS, PoolingSpec("embed"), 30) for model in models)

    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_dense_layers_of_the_pooling_are_loaded_to_the_device(tmp_path):
    """The device of tensors without memory stands for one that is not the host."""
    save_family(tmp_path, "helium")
    save_modules(tmp_path, {"pooling_mode_lasttoken": True}, normalize=False, dense=(torch.nn.Linear(64, 8), "Tanh"))
    config, request = read_model_config(tmp_path), LoadRequest("helium", tmp_path, runner="pooling")
    foreign, device = foreign_model(config, trusts_code=False), torch.device("meta")

    module = load_foreign_module(request, foreign, config, lambda *_: None, torch.float32, device)

    assert [tensor.device for tensor in tensors_in(module.pooling)] == [device] * 2  # a weight and a bias


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantization": "int8"}, "Quantization 'int8' is not supported for a model that transformers' code runs"),
        ({"cpu_offload_gb": 1}, "cpu_offload_gb is not supported for a model that transformers' code runs"),
        ({"loras": LoraLimits(1, 8, 1)}, "models that run through transformers"),
    ],
)
def test_options_that_the_model_does_not_have_are_refused(options, reason, tmp_path, load_cuda):
    save_family(tmp_path, "helium")

    with pytest.raises(ModelError, match=reason):
        load_cuda(tmp_path, **options)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_own_code_runs_only_where_it_is_trusted(is_trusted, tmp_path):
    reference = save_own_code(tmp_path)
    device = CudaDevice(WorkerSettings(device="cuda", trust_remote_code=is_trusted), HostAccelerator)
    device.set_up()
    request = LoadRequest("doubled", tmp_path, dtype="float32")

    if is_trusted:
        outputs = generated(device.load_model(request, lambda *_: None))
        assert outputs[2] == verified(reference, PROMPTS[2], outputs[2])
    else:
        with pytest.raises(ModelError, match="only in a worker with --trust-remote-code"):
            device.load_model(request, lambda *_: None)
        assert not has_run(tmp_path)
