"""Quantized weights on shards: they stay quantized, whole blocks go to each rank, and blocks are not cut."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import LAYOUT, Driver, save_tiny, tiny_config
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.gguf_rows import random_rows
from tests.worker_svc.native.native_programs import RUNNABLE, team_of
from tests.worker_svc.native.test_gguf import PROMPT, PROMPT_LOGPROBS, Kind, write
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.fp8_matrix import Fp8Matrix
from tetrad.worker_svc.checkpoint.packed_weights.grouped import BLOCK, GroupedMatrix, rounded
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix
from tetrad.worker_svc.checkpoint.packed_weights.words import pack
from tetrad.worker_svc.checkpoint.sharded import ShardedSource
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.families.check import check_config
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.model_facts.sharding import check_blocks

TOLERANCE = 0.05
"""Of log-probabilities: activations, keys and values are rounded to 8 bits, and sums differ in their last bits before."""
KINDS = {"attn_q": Kind.Q8_0, "attn_k": Kind.Q8_0, "attn_v": Kind.Q4_1, "attn_output": Kind.Q4_1, "ffn_gate": Kind.Q4_1} | {
    "ffn_up": Kind.Q4_1,
    "ffn_down": Kind.Q8_0,
    "token_embd": Kind.Q8_0,
}
ROWS, COLUMNS = 64, 512


def logprobs(driver: Driver) -> np.ndarray:
    driver.add(0, PROMPT, PROMPT_LOGPROBS)
    driver.step({0: len(PROMPT)})
    return driver.requests[0].prompt_logprobs[0][2][:, 0]


def grouped(group: int) -> GroupedMatrix:
    random, shape = torch.Generator().manual_seed(1), (ROWS, COLUMNS // group)
    quanta = torch.randint(16, (ROWS, COLUMNS), generator=random, dtype=torch.uint8)
    zeros = torch.randint(16, shape, generator=random, dtype=torch.uint8)
    return GroupedMatrix(4, quanta, torch.rand(shape, generator=random), zeros)


def in_words(*, holds_rows: bool, are_in_order: bool = True) -> WordMatrix:
    """Return 4 bits in groups of 64 columns; words have values of 8 rows, or of 8 columns."""
    matrix = grouped(64)
    groups = None if are_in_order else torch.arange(COLUMNS).flip(0).mul(5).remainder(COLUMNS // 64)
    words = pack(matrix.quanta.T, 4).T if holds_rows else pack(matrix.quanta, 4)
    return WordMatrix(4, words, matrix.scales, matrix.zeros, groups=groups, holds_rows=holds_rows)


def in_fp8(group: int) -> Fp8Matrix:
    random = torch.Generator().manual_seed(1)
    bits = torch.randn(ROWS, COLUMNS, generator=random).to(torch.float8_e4m3fn).view(torch.uint8)
    return Fp8Matrix(bits, torch.rand(ROWS, COLUMNS // group, generator=random), group)


def of_gguf(kind: Kind) -> QuantizedTensor:
    values = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)
    return QuantizedTensor(int(kind), (ROWS, COLUMNS), random_rows(kind, values))


MATRICES = {
    **{kind.name: of_gguf(kind) for kind in (Kind.Q8_0, Kind.Q4_1, Kind.Q4_K)},
    "groups of 64": grouped(64),
    "groups of 16": grouped(16),
    "a group for each row": grouped(COLUMNS),
    "words of columns": in_words(holds_rows=False),
    "words of rows": in_words(holds_rows=True),
    "words of rows with inverted bits": replace(in_words(holds_rows=True), flipped=8),
    "words in another order": in_words(holds_rows=False, are_in_order=False),
    "fp8 of blocks": in_fp8(128),
    "fp8 of rows": in_fp8(COLUMNS),
    "one zero": rounded(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))),
}


class OneMatrix:
    """A WeightSource of one matrix, whatever its name."""

    def __init__(self, matrix) -> None:
        self.matrix = matrix

    def load_quantized(self, _: str):
        return self.matrix, 1000


def parts(matrix, module: str, size: int) -> list:
    config = check_config(tiny_config("LlamaForCausalLM"), "cpu")
    sources = [ShardedSource(OneMatrix(matrix), config, Shard(index, size)) for index in range(size)]
    return [source.load_quantized(f"model.layers.0.{module}.weight") for source in sources]


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(
    ("module", "dimension", "size"),
    [("mlp.up_proj", 0, 2), ("mlp.up_proj", 0, 16), ("mlp.down_proj", 1, 2), ("mlp.router", None, 2)],
)
def test_parts_beside_each_other_are_the_matrix(name, module, dimension, size):
    """Sixteen parts of the rows do not fill words."""
    matrix = MATRICES[name]

    found = parts(matrix, module, size)

    weights = [part.dequantized() for part, _ in found]
    assert all(weight.shape == part.shape for weight, (part, _) in zip(weights, found, strict=True))
    whole = weights[0] if dimension is None else torch.cat(weights, dimension)
    assert torch.equal(whole, matrix.dequantized())
    assert {stored_bytes for _, stored_bytes in found} == {1000 if dimension is None else 1000 // size}


@pytest.mark.parametrize("name", ["groups of 64", "words of columns", "words of rows", "fp8 of blocks"])
def test_groups_that_are_cut_become_smaller_ones(name):
    found = [part for part, _ in parts(MATRICES[name], "mlp.down_proj", 16)]

    assert all(part.scales.shape[1] == 1 for part in found)
    assert torch.equal(torch.cat([part.dequantized() for part in found], 1), MATRICES[name].dequantized())


@pytest.mark.parametrize("name", ["words of columns", "words of rows", "words in another order"])
@pytest.mark.parametrize("module", ["mlp.up_proj", "mlp.down_proj"])
def test_only_a_part_of_the_mapped_words_is_read(name, module):
    whole = MATRICES[name].words

    for part, _ in parts(MATRICES[name], module, 2):
        assert part.words.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert part.words.numel() == whole.numel() // 2


def test_columns_out_of_order_are_sorted_by_group_and_groups_are_filled_up():
    """Parts have 8 columns of each group of 64."""
    matrix = MATRICES["words in another order"]
    for part, columns in zip((each for each, _ in parts(matrix, "mlp.down_proj", 8)), range(0, COLUMNS, 64), strict=True):
        in_order, inputs = part.unpacked()
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(columns))

        assert in_order.group == BLOCK
        expected = x @ matrix.dequantized()[:, columns : columns + 64].T
        torch.testing.assert_close(x[:, inputs] @ in_order.dequantized().T, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "size", "block"), [("Q8_0", 3, 32), ("Q4_K", 4, 256), ("groups of 64", 32, 32), ("groups of 16", 32, 32)]
)
def test_blocks_are_not_cut(name, size, block):
    """Activations are quantized in blocks of 32 columns, so groups of 16 stay in pairs."""
    text = rf"tensor_parallel_size {size} cuts the 512 columns of .*down_proj.weight into parts of {COLUMNS // size}"

    with pytest.raises(ModelError, match=rf"{text}, .* blocks of {block}; it may be 1, 2"):
        parts(MATRICES[name], "mlp.down_proj", size)


def test_a_gguf_file_stays_quantized_and_answers_as_on_one_rank(load, tmp_path):
    path = write(tmp_path / "model.gguf", 64, 128, KINDS)
    whole = load(path)
    expected = logprobs(Driver(whole.make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2) as group:
        layout = group.load(path)
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        found = logprobs(Driver(group, layout))

    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert all(size < 0.6 * whole.info.weights_size_bytes for size in sizes)


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"dtype": "bfloat16"}], ids=str)
def test_rounded_weights_answer_as_on_one_rank(options, load, tmp_path):
    if "dtype" in options and not team_of(RUNNABLE[0]).has_pair_products:
        pytest.skip("this processor does not multiply bfloat16")
    save_tiny(tmp_path / "model", tiny_config("LlamaForCausalLM", intermediate_size=128, head_dim=64, num_attention_heads=4))
    whole = load(tmp_path / "model", **options)
    expected = logprobs(Driver(whole.make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2) as group:
        layout = group.load(tmp_path / "model", **options)
        found = logprobs(Driver(group, layout))

    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_blocks_of_latent_attention_are_those_of_its_values(tmp_path):
    """Four heads of 24 values: 48 columns of `o_proj` on each of two ranks, whatever the size of a head's keys."""
    save_family(tmp_path, "deepseek_v3", v_head_dim=24, intermediate_size=128, moe_intermediate_size=64)
    config = read_config(json.loads((tmp_path / "config.json").read_text()))

    with pytest.raises(ModelError, match=r"size 2 cuts matrices of 96 columns into parts of 48, .* blocks of 32"):
        check_blocks(config, 2, 32, expert_parallel=True)


def test_weights_in_8_bits_whose_blocks_would_be_cut_are_refused(tiny_llama, tmp_path):
    path, _ = tiny_llama
    with (
        open_group(tmp_path, 2) as group,
        pytest.raises(
            ModelError, match=r"tensor_parallel_size 2 cuts matrices of 96 columns into parts of 48, .* blocks of 32"
        ),
    ):
        group.load(path, quantization="int8")
