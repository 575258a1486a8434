"""default_mm_loras through all four services: an adapter for prompts with images, unless a request names another."""

import asyncio
import json

import pytest

from tests.e2e.adapted_stack import served
from tests.e2e.test_images import CHATS, TOLERANCE, chat, client_of, expected
from tests.lora_files import merged, save_lora
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference

MODULES = "(language_model|text_model).*(q_proj|v_proj|o_proj)"
WITH_IMAGE, TEXT = CHATS[0], CHATS[2]


async def test_prompts_with_images_have_the_adapter_of_images_and_others_have_none(tmp_path):
    save_vision_model(tmp_path / "model", "smolvlm")
    reference = VisionReference(tmp_path / "model")
    paths = [save_lora(tmp_path / name, reference.model, MODULES, seed=seed) for seed, name in enumerate(("seen", "own"), 1)]
    plain = expected(reference, TEXT)
    base, adapted = reference.model, []
    for path in paths:
        reference.model = merged(base, path)
        adapted.append(expected(reference, WITH_IMAGE))
    frontend = {"default_mm_loras": json.dumps({"image": str(paths[0])}), "lora_modules": (f"own={paths[1]}",)}
    options = {"max_model_len": 512, "enable_lora": True, "max_loras": 2, "frontend": frontend}

    async with served(tmp_path / "model", "media-adapters", **options) as llm, client_of(llm) as http:
        answers = await asyncio.gather(
            chat(http, WITH_IMAGE), chat(http, TEXT), chat(http, WITH_IMAGE, model="own"), chat(http, WITH_IMAGE, model="image")
        )
        names = [each["id"] for each in (await http.get("/v1/models")).json()["data"]]

    for answer, right in zip(answers, (adapted[0], plain, adapted[1], adapted[0]), strict=True):
        assert answer.token_ids == right.token_ids
        assert answer.logprobs == pytest.approx(right.logprobs, abs=TOLERANCE)
    assert adapted[0].logprobs != pytest.approx(adapted[1].logprobs, abs=0.01)
    assert names[1:] == ["own", "image"]
