"""transformers runs the directories of tiny vision models: one embedding a placeholder, tokens that depend on the pixels."""

import pytest
import torch

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_kinds import KINDS
from tests.vision_reference import VisionReference

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image"}, {"type": "image"}]}]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_images_of_a_kind(kind, tmp_path):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)

    first, other = (reference.prepare(MESSAGES, [picture(60, 40, seed), picture(30, 90)]) for seed in (1, 2))
    embeddings = reference.embeddings(first)
    generated = reference.generate(first, 3)

    assert first.token_ids == other.token_ids
    assert first.token_ids.count(reference.model.config.image_token_id) == len(embeddings)
    assert len(generated.token_ids) == 3
    assert not torch.allclose(generated.logprobs[0], reference.generate(other, 1).logprobs[0], atol=0.1)
