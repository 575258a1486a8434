"""Quantized checkpoints on the CPU device: products equal those of the dequantized weights, which stay in few bits."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from tests.worker_svc.checkpoint.packed_weights.whole_models import (
    FORMATS,
    MATRICES,
    add_packed,
    compressed_config,
    write_model,
)
from tests.worker_svc.native.test_gguf import loaded, logprobs
from tests.worker_svc.quantization.checkpoints import Checkpoint
from tetrad.services.errors import ModelError

BITS = {"8 bits": 8, "int8": 8, "in bytes": 8, "fp8": 8, "other order": 8, "beyond rows": 8}
NUM_QUANTIZED = 2 * sum(rows * columns for rows, columns in MATRICES.values())


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_it_is_dequantized(name, tmp_path, make_driver):
    """In float32 on both kinds of kernels, and on quantized weights as near as rounded activations are."""
    new, add = FORMATS[name]
    quantized, floats = write_model(tmp_path, new(), add)
    plain = loaded(floats, "torch")
    expected = logprobs(plain, make_driver)

    model = loaded(quantized, "native")

    assert np.abs(logprobs(model, make_driver) - expected).mean() < 0.06 * expected.std()
    np.testing.assert_allclose(logprobs(loaded(quantized, "native", dtype="float32"), make_driver), expected, atol=1e-4)
    np.testing.assert_allclose(logprobs(loaded(quantized, "torch"), make_driver), expected, atol=1e-4)
    assert model.info.num_parameters == plain.info.num_parameters
    bits = next((bits for part, bits in BITS.items() if part in name), 4)
    others = 4 * (model.info.num_parameters - NUM_QUANTIZED)
    assert model.info.weights_size_bytes - others < NUM_QUANTIZED * (bits / 8 + 8 / 32)


@pytest.mark.parametrize("name", ["awq", "int4", "fp8", "nf4 with nested scales"])
def test_progress_ends_at_the_files_size(name, tmp_path):
    from tetrad.worker_svc.config import WorkerSettings
    from tetrad.worker_svc.core.device import LoadRequest
    from tetrad.worker_svc.devices.cpu import CpuDevice

    quantized, _ = write_model(tmp_path, FORMATS[name][0](), FORMATS[name][1])
    seen = []

    CpuDevice(WorkerSettings(threads=1)).load_model(LoadRequest("m", quantized), lambda *counts: seen.append(counts))

    assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.06)  # the file has a header besides its tensors


@pytest.mark.parametrize("form", ["awq", "int4", "int8"])
def test_layers_that_a_checkpoint_left_in_floats_stay_so(form, tmp_path, make_driver):
    new, add_packed_matrix = FORMATS[form]

    def add(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
        if "layers.0" in name or "gate" in name or "v_proj" in name:
            checkpoint.add_floats(name, rows, columns)
        else:
            add_packed_matrix(checkpoint, name, rows, columns)

    quantized, floats = write_model(tmp_path, new(), add)

    expected = logprobs(loaded(floats, "torch"), make_driver)
    assert np.abs(logprobs(loaded(quantized, "native"), make_driver) - expected).mean() < 0.06 * expected.std()


def test_another_quantization_than_its_own_is_refused(tmp_path):
    quantized, _ = write_model(tmp_path, FORMATS["awq"][0](), FORMATS["awq"][1])

    loaded(quantized, "native", quantization="awq")
    with pytest.raises(ModelError, match=r"'int8' is not supported for quantized; it runs as it is quantized \(awq\)"):
        loaded(quantized, "native", quantization="int8")


NAME = "model.layers.1.mlp.up_proj"


@cache
def whole(form: str) -> Checkpoint:
    """Return the matrices of a model, quantized."""
    new, add = FORMATS[form]
    checkpoint = new()
    for layer, (name, sizes) in product(range(2), MATRICES.items()):
        add(checkpoint, f"model.layers.{layer}.{name}", *sizes)
    return checkpoint


@pytest.mark.parametrize(
    ("form", "part", "tensor", "said"),
    [
        ("awq", "qzeros", torch.zeros(2, 3, dtype=torch.int32), r"qzeros has shape \(2, 3\)"),
        ("awq", "scales", None, r"no tensor .*scales, which its quantization needs"),
        ("awq", "qweight", torch.zeros(0, 4, dtype=torch.int32), "asks for a matrix"),
        ("awq", "qweight", torch.zeros(80, 48, dtype=torch.int32), "groups of a multiple of 32"),
        ("awq", "qweight", torch.zeros(64, 32), "is of type float32"),
        ("gptq", "g_idx", torch.full((256,), 9, dtype=torch.int32), "names groups that are not there"),
        ("gptq", "g_idx", torch.full((256,), -1, dtype=torch.int32), "names groups that are not there"),
        ("int4", "weight_shape", torch.tensor([5, 7]), "does not hold"),
        ("int4", "weight_scale", torch.ones(384, 3), "3 groups of 256 columns"),
        ("int4", "weight_scale", torch.ones(7, 4), "7 rows for 384"),
        ("int4", "weight_packed", torch.zeros(384, 32, dtype=torch.uint8), "type uint8"),
        ("int4 with zeros", "weight_zero_point", torch.zeros(3, 2, dtype=torch.int32), "has 3 words for 384 rows"),
        ("fp8 of blocks", "weight_scale_inv", torch.ones(2, 3), "has shape"),
        ("fp8", "weight", torch.zeros(384, 256), "is of type float32"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", torch.zeros(9, dtype=torch.uint8), "no state of bitsandbytes"),
        ("nvfp4", "weight_global_scale", torch.ones(3), "has shape"),
        ("nvfp4", "weight_packed", torch.zeros(384, 136, dtype=torch.uint8), "has 272 columns; supported: a multiple of 32"),
        ("modelopt nvfp4", "weight_scale_2", None, "which its quantization needs"),
        ("nf4", "weight.absmax", torch.ones(3), "has shape"),
        ("nf4", "weight", torch.zeros(5, 1, dtype=torch.uint8), "has shape"),
        ("nf4 with nested scales", "weight.nested_absmax", None, "which its quantization needs"),
        ("bitsandbytes int8", "SCB", torch.ones(3), "has shape"),
        ("bitsandbytes int8", "weight_format", torch.tensor(3, dtype=torch.uint8), "weight_format is 3, .* supported: 0"),
    ],
    ids=str,
)
def test_tensors_that_contradict_each_other_are_one_line(form, part, tensor, said, tmp_path):
    checkpoint = replace(whole(form), tensors=dict(whole(form).tensors))
    del checkpoint.tensors[f"{NAME}.{part}"]
    checkpoint.tensors |= {} if tensor is None else {f"{NAME}.{part}": tensor}
    quantized, _ = write_model(tmp_path, checkpoint, lambda *_: None)

    with pytest.raises(ModelError, match=said) as caught:
        loaded(quantized, "native")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "mxfp8-quantized"}, "format is 'mxfp8-quantized', which is not supported"),
        ({"config_groups": {}}, "config_groups says nothing"),
        ({"config_groups": {"a": {"format": "mxfp8-quantized", "weights": {}}}}, "format is 'mxfp8-quantized'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config has the format 'sparse-24-bitmask'"),
        (
            {"transform_config": {"config_groups": {"R3": {"apply": [{"location": "q_attn"}]}}}},
            "transform_config 'R3' changes 'q_attn', which is not supported; supported: weight_input, weight_output",
        ),
        ({"config_groups": {"a": {"weights": {"num_bits": 3}}}}, "num_bits is 3"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ', .* supported: 'FP8', "),
        ({"quant_method": "aqlm"}, "supported: awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8"),
    ],
    ids=str,
)
def test_a_config_that_is_not_supported_is_one_line(change, said, tmp_path):
    checkpoint = Checkpoint(compressed_config("pack-quantized", num_bits=4) | change)
    quantized, _ = write_model(tmp_path, checkpoint, add_packed(4, 32))

    with pytest.raises(ModelError, match=said) as caught:
        loaded(quantized, "native")
    assert "\n" not in caught.value.message
