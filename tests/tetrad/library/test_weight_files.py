"""Tensors of a program as files of a checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tetrad.library.weight_files import WeightFiles


def test_tensors_are_written_as_they_are():
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3).T,
        "b": torch.tensor(3.5, dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }

    with WeightFiles().written(tensors) as path:
        found = load_file(Path(path) / "model-00001.safetensors")

    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.exhaustive(short="test_tensors_are_written_as_they_are")
def test_a_tensor_may_have_more_than_two_gibibytes():
    """As the experts of a layer, or the embeddings of a large vocabulary."""
    tensor = torch.zeros((1 << 31) + 8, dtype=torch.uint8)
    tensor[-1] = 7

    with WeightFiles().written([("large", tensor)]) as path, safe_open(f"{path}/model-00001.safetensors", "pt") as file:
        assert file.get_slice("large").get_shape() == [len(tensor)]
        assert file.get_slice("large")[-2:].tolist() == [0, 7]
