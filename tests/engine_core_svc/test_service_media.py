"""Requests with images, through a whole engine core on real gRPC."""

import pytest

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.media_values import IMAGES, feature, prompt_with
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import InvalidRequest


@pytest.fixture
async def media_stack(directory):
    stack = Stack(directory)
    stack.worker.encoder.modalities = IMAGES
    async with stack:
        yield stack


async def test_an_image_is_encoded_before_its_tokens_are_planned(media_stack):
    client, image = await media_stack.client(), feature("a", 2, 20)

    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.until_finished(9)

    assert client.tokens[9] == expected(9, 4)
    assert media_stack.worker.encoder.seen == ["a"]
    (item,) = media_stack.worker.encoder.messages[0].items
    assert (item.identifier, item.modality, item.num_embeds) == ("a", "image", 20)
    assert item.tensors["pixel_values"] == image.tensors["pixel_values"]
    assert item.tensors.keys() == {"pixel_values", "sizes"}
    described = media_stack.worker.seen[0].new_requests[0].mm_features[0]
    image.ClearField("tensors")
    assert described == image


async def test_an_image_for_a_text_model_is_refused(stack):
    client, image = await stack.client(), feature("a", 0, 3)

    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.read()

    error = client.rejected["r9"]
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.field) == ("fake is not a multimodal model.", "mm_features")
