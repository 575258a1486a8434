"""Quantized weights on shards: they stay quantized, whole blocks go to each rank, and blocks are not cut."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import LAYOUT, Driver, save_tiny, tiny_config
from tests.worker_svc.gguf_rows import random_rows
from tests.worker_svc.native.native_programs import RUNNABLE, team_of
from tests.worker_svc.native.test_gguf import PROMPT, PROMPT_LOGPROBS, Kind, write
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.sharded import ShardedSource
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.families.check import check_config
from tetrad.worker_svc.packed_weights.grouped import GroupedMatrix, rounded

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


def of_gguf(kind: Kind) -> QuantizedTensor:
    values = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)
    return QuantizedTensor(int(kind), (ROWS, COLUMNS), random_rows(kind, values))


MATRICES = {
    **{kind.name: of_gguf(kind) for kind in (Kind.Q8_0, Kind.Q4_1, Kind.Q4_K)},
    "groups of 64": grouped(64),
    "groups of 16": grouped(16),
    "a group for each row": grouped(COLUMNS),
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
@pytest.mark.parametrize(("module", "dimension"), [("mlp.up_proj", 0), ("mlp.down_proj", 1), ("mlp.router", None)])
def test_parts_beside_each_other_are_the_matrix(name, module, dimension):
    matrix = MATRICES[name]

    found = parts(matrix, module, 2)

    weights = [part.dequantized() for part, _ in found]
    assert all(weight.shape == part.shape for weight, (part, _) in zip(weights, found, strict=True))
    whole = weights[0] if dimension is None else torch.cat(weights, dimension)
    assert torch.equal(whole, matrix.dequantized())
    assert {stored_bytes for _, stored_bytes in found} == {1000 if dimension is None else 500}


@pytest.mark.parametrize(
    ("name", "size", "block"), [("Q8_0", 3, 32), ("Q4_K", 4, 256), ("groups of 64", 16, 64), ("groups of 16", 32, 32)]
)
def test_blocks_are_not_cut(name, size, block):
    """Activations are quantized in blocks of 32 columns, so groups of 16 stay in pairs."""
    text = (
        rf"tensor_parallel_size {size} cuts the 512 columns of .*down_proj.weight into parts of {COLUMNS // size}.* of {block};"
    )
    with pytest.raises(ModelError, match=text):
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


def test_weights_in_8_bits_whose_blocks_would_be_cut_are_refused(tiny_llama, tmp_path):
    path, _ = tiny_llama
    with (
        open_group(tmp_path, 2) as group,
        pytest.raises(
            ModelError, match=r"tensor_parallel_size 2 cuts matrices of 96 columns into parts of 48, .* blocks of 32"
        ),
    ):
        group.load(path, quantization="int8")
