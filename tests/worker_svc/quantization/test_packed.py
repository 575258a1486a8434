"""Checkpoints that the host unpacks: matrices keep their bits on the device, and multiply as the same weights in floats."""

import pytest

from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS
from tests.worker_svc.quantization.checkpoints import activations, assert_multiplies

ROWS, COLUMNS = 64, 256
BITS = {
    "gptq in 2 bits": 4,
    "int4": 4,
    "int4 of rows": 4,
    "int4 with zeros": 4,
    "int4 of other order": 5,
    "packed int8": 8,
    "int8": 8,
    "naive int4 in bytes": 8,
    "mxfp4": 4,
    "nvfp4": 5,
    "modelopt nvfp4": 5,
    "nf4": 4,
    "nf4 with nested scales": 4,
    "bitsandbytes int8": 8,
    "int8 in groups with zeros": 32,
}
"""Format -> bits of a weight on the device.

Scales of 16 columns take another bit; so does the order of columns of so few rows. With zeros, weights of 8 bits are floats.
"""


@pytest.mark.parametrize("num_rows", [3, 40])
@pytest.mark.parametrize("form", BITS)
def test_a_format_multiplies_as_the_same_weights_in_floats(form, num_rows, tmp_path):
    new, add = FORMATS[form]
    checkpoint = new()
    add(checkpoint, "o", ROWS, COLUMNS)
    linears = checkpoint.open(tmp_path)

    layer = linears.linear([("o", ROWS)], COLUMNS)

    assert_multiplies(layer, checkpoint, "o", activations(num_rows, COLUMNS))
    assert linears.weights_size_bytes <= ROWS * COLUMNS * (BITS[form] / 8 + 6 / 32)  # scales and zeros


def test_a_format_without_groups_of_columns_is_rounded_to_8_bits(tmp_path):
    new, add = FORMATS["nf4 of blocks beyond rows"]
    checkpoint = new()
    add(checkpoint, "o", ROWS, COLUMNS)

    layer = checkpoint.open(tmp_path).linear([("o", ROWS)], COLUMNS)

    assert_multiplies(layer, checkpoint, "o", activations(3, COLUMNS), tolerance=0.02)


def test_parts_of_one_form_are_one_product(tmp_path):
    new, add = FORMATS["mxfp4"]
    checkpoint = new()
    for name in "gu":
        add(checkpoint, name, ROWS, COLUMNS)

    layer = checkpoint.open(tmp_path).linear([("g", ROWS), ("u", ROWS)], COLUMNS)

    assert type(layer).__name__ == "Int4Linear"
    assert_multiplies(layer, checkpoint, "gu", activations(3, COLUMNS))
