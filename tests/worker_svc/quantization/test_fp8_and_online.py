"""Fp8 checkpoints, and floats that are quantized at load."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.worker_svc.quantization.checkpoints import Checkpoint, activations, add_fp8, assert_multiplies, exact_activations
from tetrad.services.errors import ModelError
from tetrad.worker_svc.cuda import linears
from tetrad.worker_svc.kernels.tile_shapes import TileShapes
from tetrad.worker_svc.quantization.fp8 import FEW_ROWS, _library_rule

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": GROUPS}
FEW, MANY = activations(3, 160), exact_activations(FEW_ROWS + 1, 160)


@pytest.mark.parametrize("x", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize(
    ("config", "scale_name", "scales"),
    [
        (FP8, "weight_scale", torch.tensor(0.02)),
        (FP8, "weight_scale", torch.tensor([0.02])),
        (COMPRESSED, "weight_scale", torch.linspace(0.01, 0.1, 144)[:, None].to(torch.bfloat16)),
        (COMPRESSED, "weight_scale", torch.linspace(0.01, 0.1, 144)),
        (BLOCKS, "weight_scale_inv", torch.tensor([[0.01, 0.1], [0.3, 0.02]])),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "weight_scale", torch.tensor(0.02)),
        ({"quant_method": "fbgemm_fp8"}, "weight_scale", torch.linspace(0.01, 0.1, 144)[:, None]),
    ],
    ids=["tensor", "tensor of 1", "rows x 1", "rows", "blocks", "modelopt", "fbgemm"],
)
def test_weights_in_fp8_are_multiplied_with_their_scales(tmp_path, config, scale_name, scales, x):
    checkpoint = Checkpoint(config)
    add_fp8(checkpoint, "o", 144, 160, scales, scale_name)

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 144)], 160), checkpoint, "o", x)


@pytest.mark.parametrize(("block", "scales"), [([48, 32], (3, 5)), ([48, 40], (3, 4))], ids=["32 columns", "40 columns"])
def test_blocks_of_another_size_are_read(tmp_path, block, scales):
    """Those that are not multiples of 32 columns become floats."""
    checkpoint = Checkpoint(FP8 | {"weight_block_size": block})
    add_fp8(checkpoint, "o", 144, 160, torch.linspace(0.01, 0.1, scales[0] * scales[1]).reshape(scales), "weight_scale_inv")

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 144)], 160), checkpoint, "o", FEW)


def test_parts_with_scales_of_their_own_are_one_product(tmp_path):
    checkpoint = Checkpoint(FP8)
    for scale, name in enumerate("gu"):
        add_fp8(checkpoint, name, 48, 160, torch.tensor(scale + 0.5), "weight_scale")

    layer = checkpoint.open(tmp_path).linear([("g", 48), ("u", 48)], 160)

    assert type(layer).__name__ == "Fp8Linear"
    assert_multiplies(layer, checkpoint, "gu", FEW)


def test_a_device_without_fp8_widens_weights_and_keeps_activations(tmp_path, monkeypatch):
    made = linears.product_context
    monkeypatch.setattr(linears, "product_context", lambda *a: dataclasses.replace(made(*a), has_fp8=False))
    checkpoint = Checkpoint(BLOCKS)
    add_fp8(checkpoint, "o", 144, 160, torch.tensor([[0.01, 0.1], [0.3, 0.02]]), "weight_scale_inv")

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 144)], 160), checkpoint, "o", MANY)


def test_a_row_with_a_nan_is_nan_and_the_others_are_not(tmp_path):
    checkpoint = Checkpoint(FP8)
    add_fp8(checkpoint, "o", 16, 160, torch.tensor(0.5), "weight_scale")
    checkpoint.tensors["o.weight"].view(torch.uint8)[5, 7] = 0xFF

    found = checkpoint.open(tmp_path).linear([("o", 16)], 160)(FEW)

    assert found[:, 5].isnan().all() and not found[:, [4, 6]].isnan().any()


def test_fp8_without_scales_is_refused(tmp_path):
    checkpoint = Checkpoint(FP8)
    add_fp8(checkpoint, "o", 16, 160, torch.tensor(0.5), "scale")

    with pytest.raises(ModelError, match=r"o\.weight is of type float8_e4m3fn, but the config asks for float32 or"):
        checkpoint.open(tmp_path).linear([("o", 16)], 160)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (FP8 | {"weight_block_size": [64]}, r"weight_block_size is \[64\], not two numbers of rows and columns"),
        (FP8 | {"weight_block_size": "x"}, "weight_block_size is 'x'"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (COMPRESSED | {"config_groups": {}}, "config_groups says nothing"),
        (COMPRESSED | {"config_groups": {"g": {"weights": WEIGHTS | {"type": "log"}}}}, "type is 'log'"),
        (COMPRESSED | {"config_groups": {"g": {"weights": WEIGHTS | {"num_bits": 3}}}}, "num_bits is 3"),
        (COMPRESSED | {"config_groups": {"g": {"weights": WEIGHTS | {"strategy": "row"}}}}, "strategy is 'row'"),
        (COMPRESSED | {"config_groups": {"g": {"weights": None}}}, "says nothing of its weights"),
        (COMPRESSED | {"config_groups": {"g": 3}}, "says nothing of its weights"),
    ],
    ids=str,
)
def test_a_config_that_is_not_supported_is_one_line(tmp_path, config, said):
    checkpoint = Checkpoint(config)
    checkpoint.add_floats("o", 16, 160)

    with pytest.raises(ModelError, match=said) as caught:
        checkpoint.open(tmp_path)
    assert "\n" not in caught.value.message


def test_scales_of_another_shape_are_one_line(tmp_path):
    checkpoint = Checkpoint(BLOCKS)
    add_fp8(checkpoint, "o", 144, 160, torch.tensor(0.5), "weight_scale_inv")

    with pytest.raises(ModelError, match=r"weight_scale_inv has shape \(\), but its quantization asks for \(2, 2\)"):
        checkpoint.open(tmp_path).linear([("o", 144)], 160)


@pytest.mark.parametrize("x", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize(("requested", "tolerance"), [("int8", 0.01), ("int4", 0.15), ("fp8", 0.05)])
def test_floats_are_quantized_as_requested(tmp_path, requested, tolerance, x):
    checkpoint = Checkpoint()
    for name in "gu":
        checkpoint.add_floats(name, 48, 160)
    linears_of_it = checkpoint.open(tmp_path, requested)

    layer = linears_of_it.linear([("g", 48), ("u", 48)], 160)

    assert_multiplies(layer, checkpoint, "gu", x, tolerance)
    assert linears_of_it.weights_size_bytes < 96 * 160 * (0.7 if requested == "int4" else 1.1)


def test_rounding_is_to_the_nearest(tmp_path):
    checkpoint = Checkpoint()
    checkpoint.add_floats("o", 16, 160)
    identity = torch.eye(160, device=FEW.device)

    found = checkpoint.open(tmp_path, "int8").linear([("o", 16)], 160)(identity).T.cpu().double().numpy()

    weight = checkpoint.weights["o"]
    step = np.abs(weight).max(1, keepdims=True) / 127
    assert (np.abs(found - weight) <= step * 0.5001).all()


def test_the_output_layer_stays_in_floats(tmp_path):
    checkpoint = Checkpoint()
    checkpoint.add_floats("lm_head", 40, 160)

    layer = checkpoint.open(tmp_path, "int4").linear([("lm_head", 40)], 160)

    assert type(layer).__name__ == "PlainLinear"


def test_columns_that_no_group_divides_stay_in_floats(tmp_path):
    checkpoint = Checkpoint()
    checkpoint.add_floats("o", 16, 80)

    assert_multiplies(checkpoint.open(tmp_path, "int4").linear([("o", 16)], 80), checkpoint, "o", activations(2, 80))


@pytest.mark.parametrize("requested", ["int8", "int4", "fp8"])
def test_a_row_that_is_not_finite_stays_so(tmp_path, requested):
    checkpoint = Checkpoint()
    checkpoint.add_floats("o", 16, 160)
    checkpoint.tensors["o.weight"][3, 3] = torch.nan

    found = checkpoint.open(tmp_path, requested).linear([("o", 16)], 160)(FEW)

    assert found[:, 3].isnan().all() and not found[:, [2, 4]].isnan().any()


@pytest.mark.parametrize(
    ("config", "requested", "said"),
    [
        (None, "int2", "'int2' is not supported for weights in floats; supported: fp8, int4, int8"),
        (None, "awq", "'awq' is not supported for weights in floats"),
        (FP8, "int8", "'int8' cannot be had of a model that is quantized as fp8 already"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line(tmp_path, config, requested, said):
    checkpoint = Checkpoint(config)
    checkpoint.add_floats("o", 16, 160)

    with pytest.raises(ModelError, match=said):
        checkpoint.open(tmp_path, requested)


@pytest.mark.parametrize("rows", [3, FEW_ROWS + 1])
@pytest.mark.parametrize("requested", ["int8", "int4", "fp8"])
def test_the_library_multiplies_where_the_table_says_so(tmp_path, requested, rows):
    """A table's null; torch's own product then has the same weights."""
    checkpoint = Checkpoint()
    checkpoint.add_floats("o", 48, 160)
    layer = checkpoint.open(tmp_path, requested).linear([("o", 48)], 160)
    x = exact_activations(rows, 160)
    ours = layer(x)
    for kernel in ("int8", "int4/32", "fp8", "fp8xfp8"):
        layer._context.shapes.set(kernel, rows, 48, 160, None)

    torch.testing.assert_close(layer(x), ours, rtol=1e-4, atol=1e-5 * ours.abs().max().item())


@pytest.mark.parametrize(("num_rows", "is_ours"), [(17, True), (64, True), (65, False), (4096, False)])
def test_torch_multiplies_many_rows(num_rows, is_ours):
    shapes = TileShapes(num_processors=132)

    assert (shapes.of("fp8xfp8", num_rows, 2048, 1536, _library_rule) is not None) is is_ours
    assert shapes.of("fp8xfp8/128", num_rows, 2048, 1536) is not None, "torch has no product of groups"
