"""The axes of rotary embeddings are those of transformers' text models, for every form of a config; DeepStack's layers too."""

import numpy as np
import pytest
import torch

from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.families.axes import in_sections, in_turns
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.layers.rotary import TurnTable, rotary_of

WITH_AXES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v")


@pytest.mark.parametrize("name", WITH_AXES)
def test_pairs_turn_as_in_transformers(name, tmp_path):
    model = save_wrapper(tmp_path, name)
    positions, axes = torch.arange(40), torch.randint(0, 40, (3, 40))
    cos, sin = model.get_decoder().rotary_emb(torch.zeros(1, 40, 1), axes[:, None])
    # GLM-4.1V repeats each pair's angle side by side, all others in both halves.
    first = slice(0, None, 2) if name in ("glm4v", "glm46v") else slice(0, cos.shape[-1] // 2)

    [rope] = [rope for rope in read_config(read_model_config(tmp_path)).ropes if rope]
    rotary = rotary_of(rope.dim, rope.theta, rope.scaling, rope.axes)
    turns = rotary.turns(positions, axes).squeeze(1)

    torch.testing.assert_close(turns.real, cos[0, :, first])
    torch.testing.assert_close(turns.imag, sin[0, :, first])


def test_pairs_of_published_models():
    """Qwen2-VL turns first by time; Qwen3-VL in turns, and Qwen3.5's last two pairs by time and height."""
    sections, turns, narrow = in_sections([16, 24, 24], 64), in_turns([24, 20, 20], 64), in_turns([11, 11, 10], 32)

    assert [sections.count(axis) for axis in range(3)] == [16, 24, 24]
    assert sorted(sections) == list(sections)
    assert turns[:60] == (0, 1, 2) * 20
    assert turns[60:] == (0,) * 4
    assert narrow == (0, 1, 2) * 10 + (0, 1)


@pytest.mark.parametrize("axes", [(), (0, 0, 1, 2), (0, 1, 2, 0)])
def test_text_turns_bit_for_bit_as_without_axes(axes):
    rotary = rotary_of(8, 1e4, None, axes)
    positions = torch.tensor([0, 3, 700, 5000])

    found, expected = rotary.turns(positions, positions.repeat(3, 1)), rotary.turns(positions)
    table = TurnTable(rotary)
    from_table = table.of_axes(positions.numpy(), positions.repeat(3, 1).numpy())

    assert torch.equal(found, expected)
    assert torch.equal(from_table, table.up_to(5001)[positions])
    assert from_table.is_contiguous()


def test_a_table_has_positions_that_only_an_axis_reaches():
    table = TurnTable(rotary_of(4, 1e4, None, (0, 1)))

    found = table.of_axes(np.array([5]), np.array([[3], [3000], [0]]))

    expected = table.up_to(3001)
    assert found[0].tolist() == [expected[3, 0], expected[3000, 1], expected[3, 2], expected[3000, 3]]


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["default", "mrope", "yarn"])
def test_sections_are_found_wherever_they_are(place, kind, tmp_path):
    save_wrapper(tmp_path, "qwen2_5_vl")
    config = read_model_config(tmp_path)
    text = {key: value for key, value in config["text_config"].items() if key != "rope_parameters"}
    text[place] = {"type": kind, "mrope_section": [4, 1, 3], "rope_theta": 1e4, "factor": 2.0}

    [rope] = read_config(config | {"text_config": text}).ropes

    assert rope.axes == (0, 0, 0, 0, 1, 2, 2, 2)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ([2, 3], "three numbers of pairs"),
        ("233", "three numbers of pairs"),
        ([2, 3, 3.5], "three numbers of pairs"),
        ([9, -3, 2], "no number may be negative"),
        ([2, 3, 4], "its sum is 9, and a head turns 8 pairs"),
    ],
    ids=str,
)
def test_impossible_sections_are_refused(section, problem, tmp_path):
    save_wrapper(tmp_path, "qwen2_vl")
    config = read_model_config(tmp_path)
    config["text_config"]["rope_parameters"]["mrope_section"] = section

    with pytest.raises(ModelError, match=f"mrope_section is .*{problem}"):
        read_config(config)


def test_layers_with_further_rows_of_images(tmp_path):
    save_wrapper(tmp_path, "qwen3_vl")
    config = read_model_config(tmp_path)
    without = {key: value for key, value in config["vision_config"].items() if key != "deepstack_visual_indexes"}

    assert read_config(config).num_deep_layers == len(config["vision_config"]["deepstack_visual_indexes"])
    assert read_config(config | {"vision_config": without}).num_deep_layers == 3

    with pytest.raises(ModelError, match="deepstack_visual_indexes for 4 layers; the text model has 3"):
        read_config(config | {"vision_config": without | {"deepstack_visual_indexes": [0, 1, 2, 3]}})
