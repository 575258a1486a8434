"""A pipeline of the cuda device refuses models and options that it does not support, each with one line."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.cuda.test_ranks import LAYOUT, device
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.devices.cuda import CudaDevice

pytestmark = host_only  # NCCL wants a card for each rank


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_tiny(directory, tiny_config("LlamaForCausalLM", num_hidden_layers=3))
    return directory


@pytest.mark.parametrize(
    ("options", "size", "text"),
    [
        ({}, 4, r"pipeline_parallel_size 4 exceeds this model's 3 layers; use at most that"),
        ({"draft_method": "mtp"}, 2, "speculative_config.method 'mtp' is not supported for"),
        ({"runner": "pooling"}, 2, "pipeline_parallel_size 2: a model that pools runs on one worker; use 1"),
    ],
    ids=str,
)
def test_what_a_pipeline_cannot_run_is_refused_in_one_line(llama, options, size, text, tmp_path):
    with open_group(tmp_path, 1, size, make_device=device) as group, pytest.raises(ModelError, match=text):
        group.load(llama, LAYOUT, **options)


def test_a_tensor_of_no_known_layer_is_refused(llama, tmp_path):
    """The stage with the embeddings finds it: it knows which tensors the stage with the output layer reads."""
    path = shutil.copytree(llama, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {"model.norm_of_something.weight": torch.ones(64)}, path / "model.safetensors", {"format": "pt"})

    with open_group(tmp_path, 1, 2, make_device=device) as group, pytest.raises(ModelError, match=r"model\.norm_of_something"):
        group.load(path, LAYOUT)


def test_weights_in_host_memory_are_refused_in_one_line(llama, tmp_path):
    def offloading() -> CudaDevice:
        return CudaDevice(WorkerSettings(device="cuda", cpu_offload_gb=1), HostAccelerator)

    with open_group(tmp_path, 1, 2, make_device=offloading) as group, pytest.raises(ModelError, match="cpu_offload_gb"):
        group.load(llama, LAYOUT)
