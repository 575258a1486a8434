"""Towers: embeddings of 8-bit pixels equal those of transformers' whole model, for every family."""

import numpy as np
import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_kinds import KINDS
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_prompts import image_prompt, item_tensors
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS

IMAGES = [picture(60, 40), picture(30, 90, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_those_of_the_whole_model(kind, tmp_path, load):
    architecture = type(save_vision_model(tmp_path, kind)).__name__
    if architecture not in TOWER_KINDS:
        pytest.skip("it takes only text")
    reference = VisionReference(tmp_path)
    prompt = image_prompt(reference, IMAGES)
    expected = reference.embeddings(prompt.prepared).numpy()
    deep = [layer.numpy() for layer in reference.deep_embeddings(prompt.prepared)]

    model = load(tmp_path)
    tower = model.media.tower
    encoded = [tower.encode(item) for item in prompt.items]

    assert np.abs(np.concatenate([each.rows for each in encoded]) - expected).max() < 1e-5
    assert tower.num_deep_layers == len(deep)
    for index, layer in enumerate(deep):
        assert np.abs(np.concatenate([each.deep[index] for each in encoded]) - layer).max() < 1e-5
    assert model.info.modalities[0].max_embeds_per_item >= max(item.num_embeds for item in prompt.items)
    assert model.info.uses_mrope == (prompt.spans[0].grid is not None)


def test_embeddings_of_a_client_are_kept_with_those_of_deep_layers(tmp_path, load):
    save_vision_model(tmp_path, "qwen3_vl")
    tower = load(tmp_path).media.tower
    rows = np.arange(2 * 3 * tower._hidden_size, dtype=np.float32).reshape(2, -1)
    own, *deep = np.split(rows, 3, axis=1)

    encoded = tower.encode(EncoderItem("given", "image", {"image_embeds": rows}, 2))

    assert np.array_equal(encoded.rows, own)
    assert np.array_equal(encoded.deep, deep)
    for wrong, text in ((own, "values of 0 deep layers; the model has 2"), (rows[:, 1:], "rows of 64 values")):
        with pytest.raises(InvalidRequest, match=text):
            tower.encode(EncoderItem("wrong", "image", {"image_embeds": wrong}, 2))


def test_an_image_of_one_embedding_has_the_same_as_beside_others(tmp_path, load):
    """transformers' Mistral 3 refuses such an image alone."""
    save_vision_model(tmp_path, "mistral3")
    reference = VisionReference(tmp_path)
    icon = picture(20, 20)
    parts = [{"type": "image"}, {"type": "image"}]
    both = reference.embeddings(reference.prepare([{"role": "user", "content": parts}], [icon, IMAGES[0]])).numpy()

    encoded = load(tmp_path).media.tower.encode(EncoderItem("icon", "image", item_tensors(reference, icon), 1))

    assert np.abs(encoded.rows - both[:1]).max() < 1e-5
