"""Positions of prompts with images on three axes equal those of transformers' get_rope_index."""

import numpy as np
import pytest
import torch

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_prompts import image_prompt
from tetrad.worker_svc.core.plan import MediaSpan
from tetrad.worker_svc.media.positions import PromptAxes

KINDS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "glm46v"]
BEHIND = 6


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_those_of_transformers(kind, tmp_path):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    prompt = image_prompt(reference, [picture(60, 40), picture(30, 90, 1), picture(64, 64, 2)], before="Compare", after="?")
    inputs = prompt.prepared.inputs
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw")
    expected, delta = reference.model.model.get_rope_index(**{name: inputs[name] for name in names})

    axes = PromptAxes(prompt.spans)

    length = len(prompt.token_ids)
    assert axes.of(0, length).tolist() == expected[:, 0].tolist()
    assert axes.delta == int(delta)
    assert axes.of(length, BEHIND).tolist() == (torch.arange(BEHIND) + length + delta[0]).expand(3, -1).tolist()


def test_a_chunk_may_begin_and_end_inside_an_image():
    spans = (MediaSpan("a", "image", 2, 6, None, 6, (1, 2, 3)), MediaSpan("b", "image", 10, 4, None, 4, (1, 4, 1)))
    axes = PromptAxes(spans)

    whole = axes.of(0, 40)

    for start in range(20):
        for count in (1, 3, 20 - start):
            assert axes.of(start, count).tolist() == whole[:, start : start + count].tolist()
    assert whole[:, :9].tolist() == [[0, 1, 2, 2, 2, 2, 2, 2, 5], [0, 1, 2, 2, 2, 3, 3, 3, 5], [0, 1, 2, 3, 4, 2, 3, 4, 5]]
    assert axes.delta == 3 - 6 + 4 - 4


def test_marks_around_an_image_s_embeddings_count_as_text():
    is_embed = np.array([0, 1, 1, 0], np.bool_)

    axes = PromptAxes((MediaSpan("a", "image", 1, 4, is_embed, 2, (1, 1, 2)),))

    assert axes.of(0, 6).tolist() == [[0, 1, 2, 2, 4, 5], [0, 1, 2, 2, 4, 5], [0, 1, 2, 3, 4, 5]]
