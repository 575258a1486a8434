"""Embeddings of images in the prompts and messages of programs, as the frontend gets them."""

import io

import pytest
import torch

from tetrad.frontend.request.prompts import normalize_prompt
from tetrad.library.media_prompts import messages_with_files, with_files
from tetrad.services.errors import InvalidRequest


async def items_of(given):
    """Return the items of a prompt with these embeddings."""
    prompt = await with_files({"prompt": "<image>", "multi_modal_data": {"image": given}})
    return normalize_prompt(prompt).media


GRID = torch.tensor([[1, 2, 2], [1, 2, 4]])


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (torch.zeros(2, 3, 8), [3, 3]),
        ([torch.zeros(3, 8), torch.zeros(5, 8)], [3, 5]),
        (torch.zeros(3, 8), [3]),
        ({"image_embeds": torch.zeros(3, 8)}, [3]),
        ({"image_embeds": torch.zeros(3, 8), "image_grid_thw": GRID}, [1, 2]),
        ({"image_embeds": [torch.zeros(1, 8), torch.zeros(2, 8)], "image_grid_thw": list(GRID)}, [1, 2]),
        ({"image_embeds": torch.zeros(1, 8), "image_grid_thw": GRID[0]}, [1]),
    ],
)
async def test_tensors_are_embeddings_of_one_or_several_items(given, sizes):
    items = await items_of(given)

    tensors = [{name: torch.load(io.BytesIO(file)) for name, file in item.embeds.items()} for item in items]
    assert [len(each["image_embeds"]) for each in tensors] == sizes
    assert all(item.is_embeds and item.modality == "image" for item in items)
    if isinstance(given, dict) and "image_grid_thw" in given:
        assert [each["image_grid_thw"].flatten().tolist() for each in tensors] == GRID[: len(sizes)].tolist()


async def test_the_file_of_an_item_has_its_own_values_alone():
    [first, _] = await items_of(torch.zeros(2, 4, 1000))

    assert len(first.embeds["image_embeds"]) < 20_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"image_embeds": [1.0]}, r"multi_modal_data\['image'\] must hold tensors, got float"),
        ({"image_embeds": 1.0}, "must be a tensor or a list of tensors, got float"),
        (torch.zeros(1, 3, 8).to_sparse(), "has a tensor that cannot be saved"),
        (torch.zeros(1, 3, 8, device="meta"), "has a tensor that cannot be saved"),
        ({"pixels": torch.zeros(3, 8)}, "has no image_embeds; it has pixels"),
        ({"image_embeds": torch.zeros(3, 1, 8), "image_grid_thw": GRID}, "3 items of image_embeds and 2 of image_grid_thw"),
    ],
)
async def test_other_embeddings_are_refused(given, text):
    with pytest.raises(InvalidRequest, match=text):
        await items_of(given)


async def test_parts_of_messages_may_have_tensors():
    part = {"type": "image_embeds", "image_embeds": torch.zeros(1, 3, 8), "uuid": "mine"}

    [message] = await messages_with_files([{"role": "user", "content": [part]}])
    with pytest.raises(InvalidRequest, match="image_embeds has 2 items; a part has one"):
        await messages_with_files([{"role": "user", "content": [part | {"image_embeds": torch.zeros(2, 3, 8)}]}])

    [made] = message["content"]
    assert (made["type"], made["image"].uuid, made["image"].is_embeds) == ("image", "mine", True)


async def test_the_name_of_tensors_in_a_message_is_checked():
    part = {"type": "image_embeds", "image_embeds": torch.zeros(3, 8), "uuid": 5}

    with pytest.raises(InvalidRequest, match=r"image_embeds\.uuid must"):
        await messages_with_files([{"role": "user", "content": [part]}])


async def test_a_text_stays_a_text_beside_tensors():
    conversation = [{"role": "user", "content": [{"type": "text", "text": "a", "image_embeds": torch.zeros(3, 8)}]}]

    assert await messages_with_files(conversation) is conversation


async def test_samples_of_channels_and_their_rate_are_audio():
    prompt = await with_files({"prompt": "<audio>", "multi_modal_data": {"audio": (torch.zeros(2, 100), 16_000)}})

    [item] = normalize_prompt(prompt).media
    assert not getattr(item, "is_embeds", False)
