"""Checkpoints in 4 and 8 bits: products follow the definitions of AutoAWQ and AutoGPTQ."""

import pytest
import torch

from tests.worker_svc.quantization.checkpoints import (
    activations,
    add_awq,
    add_gptq,
    assert_multiplies,
    awq_checkpoint,
    gptq_checkpoint,
)
from tetrad.services.errors import ModelError
from tetrad.worker_svc.layers.rotary import interleave_heads

X = activations(3, 128)
QKV = [("q", 32), ("k", 16), ("v", 16)]


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq_parts_are_one_product(tmp_path, group):
    checkpoint = awq_checkpoint(group)
    for name, rows in QKV:
        add_awq(checkpoint, name, rows, 128, group)

    layer = checkpoint.open(tmp_path).linear(QKV, 128)

    assert type(layer).__name__ == "Int4Linear"
    assert_multiplies(layer, checkpoint, "qkv", X)


def test_awq_rows_of_queries_and_keys_are_interleaved(tmp_path):
    checkpoint = awq_checkpoint()
    for name, rows in QKV:
        add_awq(checkpoint, name, rows, 128, 32)
    checkpoint.tensors["q.bias"] = torch.arange(32.0)

    layer = checkpoint.open(tmp_path).linear(QKV, 128, rotated=[True, True, False], head_dim=16)

    bias = interleave_heads(torch.arange(32.0), 16).to(X.device)
    for name in "qk":
        checkpoint.weights[name] = interleave_heads(torch.from_numpy(checkpoint.weights[name]), 16).numpy()
    assert_multiplies(lambda x: layer(x) - torch.nn.functional.pad(bias, (0, 32)), checkpoint, "qkv", X)


@pytest.mark.parametrize("left_in_floats", ["k", "qkv"])
def test_what_awq_left_in_floats_stays_so(tmp_path, left_in_floats):
    checkpoint = awq_checkpoint()
    for name, rows in QKV:
        if name in left_in_floats:
            checkpoint.add_floats(name, rows, 128)
        else:
            add_awq(checkpoint, name, rows, 128, 32)

    layer = checkpoint.open(tmp_path).linear(QKV, 128)

    assert_multiplies(layer, checkpoint, "qkv", X)


@pytest.mark.parametrize(("stored_as", "stored_less"), [({}, 1), ({"checkpoint_format": "gptq_v2"}, 0)])
@pytest.mark.parametrize("group", [32, 128])
def test_gptq_parts_are_one_product(tmp_path, group, stored_as, stored_less):
    checkpoint = gptq_checkpoint(group, **stored_as)
    for name, rows in QKV:
        add_gptq(checkpoint, name, rows, 128, group, stored_less=stored_less)

    layer = checkpoint.open(tmp_path).linear(QKV, 128)

    assert type(layer).__name__ == "Int4Linear"
    assert_multiplies(layer, checkpoint, "qkv", X)


def test_gptq_with_one_group_a_row(tmp_path):
    checkpoint = gptq_checkpoint(-1)
    add_gptq(checkpoint, "o", 16, 128, 128)

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 16)], 128), checkpoint, "o", X)


def test_gptq_zeros_of_0_wrap_around(tmp_path):
    checkpoint = gptq_checkpoint()
    add_gptq(checkpoint, "o", 32, 128, 32, least_zero=0)

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 32)], 128), checkpoint, "o", X)


def test_gptq_in_8_bits(tmp_path):
    checkpoint = gptq_checkpoint(32, 8)
    add_gptq(checkpoint, "o", 16, 128, 32, bits=8, zero=128)

    layer = checkpoint.open(tmp_path).linear([("o", 16)], 128)

    assert type(layer).__name__ == "Int8Linear"
    assert_multiplies(layer, checkpoint, "o", X)


@pytest.mark.parametrize("shuffle", ["", "order"])
def test_gptq_in_8_bits_with_zeros_becomes_floats(tmp_path, shuffle):
    checkpoint = gptq_checkpoint(32, 8)
    add_gptq(checkpoint, "o", 16, 128, 32, bits=8, shuffle=shuffle)

    assert_multiplies(checkpoint.open(tmp_path).linear([("o", 16)], 128), checkpoint, "o", X)


def test_groups_out_of_order_are_put_in_order_at_load(tmp_path):
    """Parts of one product have seen the same activations, so their columns are in one order: one gather, one product."""
    checkpoint = gptq_checkpoint(desc_act=True)
    for name, rows in QKV:
        add_gptq(checkpoint, name, rows, 128, 32, shuffle="same")

    layer = checkpoint.open(tmp_path).linear(QKV, 128)

    assert type(layer).__name__ == "GatheredColumns"
    assert_multiplies(layer, checkpoint, "qkv", X)


def test_parts_whose_groups_are_in_different_orders_are_multiplied_apart(tmp_path):
    checkpoint = gptq_checkpoint(desc_act=True)
    for name, rows in QKV:
        add_gptq(checkpoint, name, rows, 128, 32, shuffle=name)

    assert_multiplies(checkpoint.open(tmp_path).linear(QKV, 128), checkpoint, "qkv", X)


def test_bytes_and_parameters_are_counted(tmp_path):
    checkpoint = awq_checkpoint()
    add_awq(checkpoint, "o", 16, 128, 32)
    linears = checkpoint.open(tmp_path)
    linears.linear([("o", 16)], 128)

    assert linears.weights_size_bytes == 16 * 128 // 2 + 16 * 4 * (2 + 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 3}, "bits is 3, which is not supported; supported: 4"),
        ({"bits": None}, "bits is None"),
        ({"bits": True}, "bits is True"),
        ({"group_size": 48}, "group_size is 48"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": "32"}, "group_size is '32'"),
        ({"group_size": 1 << 40}, "group_size is 1099511627776"),
        ({"version": "gemv"}, "version is 'gemv'"),
        ({"zero_point": False}, "zero_point is False"),
        (
            {"quant_method": "aqlm"},
            "quantized as 'aqlm', .* supported: awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8",
        ),
        ({"quant_method": ["awq"]}, "quantized as .*awq"),
    ],
    ids=str,
)
def test_a_config_that_is_not_supported_is_one_line(tmp_path, change, said):
    checkpoint = awq_checkpoint()
    checkpoint.quantization |= change
    checkpoint.add_floats("o", 16, 128)

    with pytest.raises(ModelError, match=said) as caught:
        checkpoint.open(tmp_path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("config", [[], "awq", 7, {}])
def test_a_config_of_another_form_is_one_line(tmp_path, config):
    checkpoint = awq_checkpoint()
    checkpoint.quantization = config
    checkpoint.add_floats("o", 16, 128)

    with pytest.raises(ModelError, match=r"quantized as|quantization_config"):
        checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("qweight", torch.zeros(16, 15, dtype=torch.int32), r"qweight has 15 rows, but zeros of 4 bits need a multiple of 8"),
        ("qweight", torch.zeros(16, 16), "is of type float32, but its quantization asks for int32"),
        ("qweight", torch.zeros(8, 16, dtype=torch.int32), r"qzeros has shape \(4, 2\), .* asks for \(2, 2\)"),
        ("qzeros", torch.zeros(4, 3, dtype=torch.int32), r"has shape \(4, 3\)"),
        ("scales", torch.zeros(4, 16, dtype=torch.int32), "is of type int32"),
        ("g_idx", torch.full((128,), 7, dtype=torch.int32), "g_idx names groups that are not there; there are 4"),
        ("g_idx", torch.full((128,), -1, dtype=torch.int32), "g_idx names groups that are not there"),
        ("g_idx", torch.zeros(3, dtype=torch.int32), "has shape"),
    ],
    ids=str,
)
def test_a_tensor_that_does_not_fit_is_one_line(tmp_path, name, tensor, said):
    checkpoint = gptq_checkpoint()
    add_gptq(checkpoint, "o", 16, 128, 32)
    checkpoint.tensors[f"o.{name}"] = tensor

    with pytest.raises(ModelError, match=said):
        checkpoint.open(tmp_path).linear([("o", 16)], 128)


def test_a_missing_tensor_is_one_line(tmp_path):
    checkpoint = awq_checkpoint()
    add_awq(checkpoint, "o", 16, 128, 32)
    del checkpoint.tensors["o.scales"]

    with pytest.raises(ModelError, match=r"no tensor o\.scales"):
        checkpoint.open(tmp_path).linear([("o", 16)], 128)


@pytest.mark.parametrize(("columns", "group"), [(112, 32), (112, -1), (160, 64), (32, 64)])
def test_a_matrix_that_cannot_be_cut_into_groups_is_one_line(tmp_path, columns, group):
    checkpoint = awq_checkpoint(group)
    checkpoint.tensors["o.qweight"] = torch.zeros(columns, 2, dtype=torch.int32)

    with pytest.raises(ModelError, match=rf"qweight has {columns} columns, in groups of \d+; supported: .* a multiple of 32"):
        checkpoint.open(tmp_path).linear([("o", 16)], columns)


def test_a_matrix_of_another_size_than_the_model_is_one_line(tmp_path):
    checkpoint = awq_checkpoint()
    add_awq(checkpoint, "o", 16, 128, 32)

    with pytest.raises(ModelError, match=r"o\.weight has shape \(16, 128\), but the config asks for \(24, 128\)"):
        checkpoint.open(tmp_path).linear([("o", 24)], 128)
