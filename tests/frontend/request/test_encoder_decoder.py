"""Prompts of an encoder and a decoder, in vLLM's form, become prompts of one part."""

import pytest

from tetrad.frontend.request.encoder_decoder import has_two_parts, joined
from tetrad.frontend.request.prompts import normalize_prompt
from tetrad.services.errors import InvalidRequest

ENCODER = {"prompt": "", "multi_modal_data": {"image": b"file"}}


@pytest.mark.parametrize(
    ("decoder", "fields"),
    [
        ("<|start|>", {"prompt": "<|start|>"}),
        (None, {"prompt": ""}),
        ([1, 2], {"prompt_token_ids": [1, 2]}),
        ({"prompt": "a", "cache_salt": "s"}, {"prompt": "a", "cache_salt": "s"}),
        ({"prompt_token_ids": [3], "multi_modal_data": None}, {"prompt_token_ids": [3]}),
    ],
)
def test_the_media_are_the_encoders_and_the_rest_is_the_decoders(decoder, fields):
    prompt = {"encoder_prompt": ENCODER, "decoder_prompt": decoder}

    assert has_two_parts(prompt)
    assert joined(prompt) == {"multi_modal_data": {"image": b"file"}, **fields}


def test_the_decoders_part_may_be_missing_and_the_encoder_has_options():
    encoder = ENCODER | {"prompt_token_ids": [], "multi_modal_uuids": {"image": "u"}, "mm_processor_kwargs": {"a": 1}}

    assert joined({"encoder_prompt": encoder}) == {
        "multi_modal_data": {"image": b"file"},
        "multi_modal_uuids": {"image": "u"},
        "mm_processor_kwargs": {"a": 1},
        "prompt": "",
    }


def test_a_request_takes_it_as_a_prompt():
    prompt = normalize_prompt({"encoder_prompt": ENCODER, "decoder_prompt": "hi"})

    assert (prompt.text, [source.data for source in prompt.media]) == ("hi", [b"file"])


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ({"encoder_prompt": "a text", "decoder_prompt": "b"}, "encoder_prompt needs multi_modal_data: encoders of media"),
        ({"encoder_prompt": {"prompt": ""}}, "encoder_prompt needs multi_modal_data"),
        ({"decoder_prompt": "b"}, "encoder_prompt needs multi_modal_data"),
        ({"encoder_prompt": ENCODER | {"prompt": "x"}}, "encoder_prompt has prompt, which no encoder reads"),
        (
            {"encoder_prompt": ENCODER | {"prompt_token_ids": [1]}},
            "has prompt_token_ids, which no encoder reads",
        ),
        ({"encoder_prompt": ENCODER | {"other": 1}}, "encoder_prompt has no key 'other'"),
        ({"encoder_prompt": ENCODER, "prompt": "b"}, "has no key 'prompt' but decoder_prompt"),
        ({"encoder_prompt": ENCODER, "decoder_prompt": 7}, "decoder_prompt is a text, a list of token ids or a dict of them"),
        ({"encoder_prompt": ENCODER, "decoder_prompt": ENCODER}, "Cannot pass multi-modal inputs to decoder prompt"),
        ({"encoder_prompt": ENCODER, "decoder_prompt": {"other": 1}}, "A prompt has no key 'other'"),
    ],
)
def test_other_parts_are_refused(prompt, text):
    with pytest.raises(InvalidRequest, match=text):
        normalize_prompt(prompt)
