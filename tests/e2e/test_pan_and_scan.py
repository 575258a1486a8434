"""Gemma 3's pan-and-scan: a request may have its long images seen in crops as well, with the tokens of transformers."""

import pytest

from tests.e2e.adapted_stack import served
from tests.e2e.test_images import NUM_TOKENS, TOLERANCE, Answer, asked, chat, client_of
from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference

CROPS = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20}
LONG, SQUARE = picture(200, 50, 1), picture(60, 60, 2)


def check(reference: VisionReference, images: list[bytes], answer: Answer, **kwargs: object) -> None:
    parts = [{"type": "text", "text": "What is on"}, *({"type": "image"} for _ in images)]
    prepared = reference.prepare([{"role": "user", "content": parts}], images, **kwargs)
    expected = reference.generate(prepared, NUM_TOKENS)
    assert answer.prompt == prepared.token_ids
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs_of_tokens(), abs=TOLERANCE)


async def test_a_long_image_is_seen_in_crops_if_the_request_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TETRAD_TOKENIZER_IMAGE_PROCESSES", "1")
    save_vision_model(tmp_path, "gemma3")
    reference = VisionReference(tmp_path)
    async with served(tmp_path, "crops", max_model_len=512) as llm, client_of(llm) as http:
        plain = await chat(http, ["What is on", LONG])
        cropped = await chat(http, ["What is on", LONG], mm_processor_kwargs=CROPS)
        both = await chat(http, ["What is on", SQUARE, LONG], mm_processor_kwargs=CROPS)
        many = asked(["What is on", picture(400, 50, 3)], mm_processor_kwargs=CROPS | {"pan_and_scan_max_num_crops": 9})
        refused = await http.post("/v1/chat/completions", json=many)

    sizes = {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    check(reference, [LONG], plain)
    check(reference, [LONG], cropped, **CROPS, **sizes)
    check(reference, [SQUARE, LONG], both, **CROPS, **sizes)
    assert len(cropped.prompt) > len(plain.prompt) + 20
    assert refused.status_code == 400
    assert "it becomes 36 embeddings; the limit is 20" in refused.json()["error"]["message"]
