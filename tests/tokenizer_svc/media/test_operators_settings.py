"""Settings of the image processor that an operator chooses: they replace the model's own, and requests may set others."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from tests.pictures import picture
from tests.tokenizer_svc.media.conftest import item
from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve
from tetrad.v1 import tokenizer_pb2

KIND, PROMPT = "qwen2_5_vl", "<|vision_start|><|image_pad|><|vision_end|>"


async def num_embeds(stub, kwargs: str = "") -> int:
    """Return the number of embeddings of an image that has more pixels than any of these settings allows."""
    media = [item(picture(280, 280))]
    request = tokenizer_pb2.EncodeRequest(texts=[PROMPT], media=media, mm_processor_kwargs_json=kwargs.encode())
    [encoding] = (await stub.Encode(request)).encodings
    return encoding.mm_features[0].num_embeds


async def test_the_operators_settings_replace_the_models_and_those_of_a_request_come_first(
    stub_of, serve_model, model_directory
):
    own = await stub_of(KIND)
    assert await num_embeds(own) == 16
    before = await own.GetInfo(tokenizer_pb2.GetInfoRequest())
    async with serve_model(model_directory(KIND), mm_processor_kwargs=json.dumps({"max_pixels": 4 * 28 * 28})) as stub:
        info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())

        assert info.modalities[0].max_embeds_per_item < before.modalities[0].max_embeds_per_item
        assert await num_embeds(stub) == 4
        assert await num_embeds(stub, json.dumps({"max_pixels": 28 * 28})) == 1


@pytest.mark.parametrize("kwargs", [{"max_colours": 3}, {"image_mean": [0, 0, 0]}])
async def test_a_setting_that_the_model_does_not_take_ends_the_start(tmp_path, model_directory, kwargs):
    settings = TokenizerSettings(
        listen=f"unix:{tmp_path}/tokenizer", model=str(model_directory(KIND)), mm_processor_kwargs=json.dumps(kwargs)
    )

    with pytest.raises(ModelError, match=f"mm_processor_kwargs has '{min(kwargs)}'; this model takes "):
        await serve(settings, asyncio.Event())


async def test_a_value_that_the_image_processor_does_not_take_ends_the_start(tmp_path, model_directory):
    """The model would take only text, and the operator would find it out with the first image."""
    settings = TokenizerSettings(
        listen=f"unix:{tmp_path}/tokenizer", model=str(model_directory(KIND)), mm_processor_kwargs='{"max_pixels": "many"}'
    )

    with pytest.raises(ModelError, match=r"mm_processor_kwargs \{'max_pixels': 'many'\} cannot be used: "):
        await serve(settings, asyncio.Event())


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_settings_that_are_no_object_are_refused(text):
    with pytest.raises(ValidationError, match="mm_processor_kwargs"):
        TokenizerSettings(mm_processor_kwargs=text)
