"""Rotary embedding: frequencies and gains are those of transformers for every form of a config; both forms of turns agree."""

import pytest
import torch

from tests.worker_svc.conftest import tiny_config
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.gguf_metadata import config_from_metadata
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.layers.rotary import TurnTable, interleave_heads, rotary_of, rotate_

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("scaling", "changes"),
    [
        (YARN, {}),
        (YARN | {"factor": None}, {}),
        (YARN | {"factor": 0.5}, {}),
        (YARN | {"truncate": False, "beta_fast": 20, "beta_slow": 2}, {"head_dim": 128}),
        (YARN | {"beta_fast": 2, "beta_slow": 2, "truncate": False}, {}),
        (YARN | {"attention_factor": 1.3, "mscale": 2.0, "mscale_all_dim": 1.0}, {}),
        (YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}, {"rope_theta": 500_000.0}),
        (YARN | {"partial_rotary_factor": 0.75}, {"head_dim": 64}),
    ],
    ids=str,
)
def test_yarn_is_that_of_transformers(scaling, changes):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    raw = tiny_config("LlamaForCausalLM", **changes, rope_scaling=scaling)
    frequencies, gain = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**raw), "cpu")

    [rope] = read_config(raw).ropes
    rotary = rotary_of(rope.dim, rope.theta, rope.scaling)

    torch.testing.assert_close(rotary.frequencies, frequencies, rtol=1e-6, atol=0)
    assert rotary.gain == pytest.approx(gain)


def test_tables_and_turns_rotate_alike():
    """The first four dimensions of six turn, and grow; the others stay."""
    rotary = rotary_of(4, 100.0, YARN | {"attention_factor": 1.5})
    positions = torch.tensor([0, 3, 1000])
    heads = torch.randn(3, 2, 6)
    cos, sin = rotary.cos_sin(positions)[:, None].chunk(2, -1)
    even, odd = heads[..., 0:4:2], heads[..., 1:4:2]
    expected = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    turned = heads.clone()
    rotate_(turned, rotary.turns(positions))

    torch.testing.assert_close(turned, torch.cat([expected, heads[..., 4:]], -1))
    torch.testing.assert_close(turned[0, :, :4], heads[0, :, :4] * 1.5)


def test_a_table_has_what_is_asked_for_and_grows():
    rotary = rotary_of(4, 100.0, None)
    table = TurnTable(rotary)

    for num_positions in (1, 700, 1025, 5000, 3):
        turns = table.up_to(num_positions)

        assert len(turns) >= num_positions
        torch.testing.assert_close(turns[:num_positions], rotary.cos_sin(torch.arange(num_positions)))
    assert len(turns) < 10_000


def test_rows_behind_the_pairs_stay_where_they_are():
    assert interleave_heads(torch.arange(12), 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling", None])
def test_a_partial_factor_is_found_wherever_it_is(place):
    value = {"partial_rotary_factor": 0.25}

    [rope] = read_config(tiny_config("Phi3ForCausalLM", **({place: value} if place else value))).ropes

    assert rope.dim == 4


@pytest.mark.parametrize("factor", [0, 0.2, 1.25, -1, float("nan")])
def test_an_impossible_partial_factor_is_one_line(factor):
    with pytest.raises(ModelError) as caught:
        read_config(tiny_config("Phi3ForCausalLM", partial_rotary_factor=factor))

    assert "\n" not in caught.value.message


def test_a_gguf_file_says_how_long_its_contexts_were():
    fields = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 2,
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 32768,
    }

    config = config_from_metadata(fields.get, lambda _: False, vocab_size=10, is_tied=True)

    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_a_gguf_file_of_gpt_oss_without_a_scaling_has_none():
    fields = {"general.architecture": "gpt-oss", "gpt-oss.block_count": 2}

    config = config_from_metadata(fields.get, lambda _: False, vocab_size=10, is_tied=True)

    assert config["rope_scaling"] == {"rope_type": "default"}
