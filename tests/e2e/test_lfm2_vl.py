"""Images of LFM2-VL, through all four services: tokens and log-probabilities are those of transformers' whole model."""

import asyncio
import io
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

from tests.e2e.adapted_stack import served
from tests.e2e.test_images import Answer, chat, client_of
from tests.lfm2_vl_files import SETTINGS, save_lfm2_vl
from tests.pictures import picture
from tetrad.tokenizer_svc.media.images.lfm2_processor import Lfm2Processor

SMALL, WIDE, TALL = picture(40, 30, 1), picture(200, 60, 2), picture(60, 140, 3)
CHATS = (["What is on", SMALL, "this?"], [WIDE, "Compare", TALL], ["a " * 30, TALL, SMALL])


@pytest.fixture(autouse=True)
def one_image_process(monkeypatch):
    """A second one takes seconds to start."""
    monkeypatch.setenv("TETRAD_TOKENIZER_IMAGE_PROCESSES", "1")


def made(data: bytes) -> dict[str, Any]:
    return Lfm2Processor(**SETTINGS).preprocess([Image.open(io.BytesIO(data)).convert("RGB")])


def check(model: Any, tokenizer: Any, content: list[str | bytes], answer: Answer) -> None:
    images = [made(part) for part in content if isinstance(part, bytes)]
    texts = iter([text_of(image) for image in images])
    written = "".join(next(texts) if isinstance(part, bytes) else part for part in content)
    assert answer.prompt == tokenizer.encode(f"user: {written}assistant: ", add_special_tokens=False)
    shapes = np.concatenate([image["spatial_shapes"][0] for image in images])
    rows = np.concatenate([image["pixel_values"] for image in images])
    parts = torch.from_numpy(((rows / np.float32(255)).astype(np.float32) - 0.5) / 0.5).split(shapes.prod(axis=1).tolist())
    mask = torch.arange(shapes.prod(axis=1).max())[None] < torch.from_numpy(shapes.prod(axis=1))[:, None]
    settings = transformers.GenerationConfig(max_new_tokens=len(answer.token_ids), do_sample=False, pad_token_id=0)
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.tensor([answer.prompt]),
            pixel_values=torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True),
            spatial_shapes=torch.from_numpy(shapes),
            pixel_attention_mask=mask.long(),
            generation_config=settings,
            return_dict_in_generate=True,
            output_logits=True,
        )
    logprobs = torch.cat(out.logits).log_softmax(dim=-1)
    assert out.sequences[0, len(answer.prompt) :].tolist() == answer.token_ids
    expected = logprobs[torch.arange(len(answer.token_ids)), torch.tensor(answer.token_ids)].tolist()
    assert answer.logprobs == pytest.approx(expected, abs=2e-4)


def text_of(image: dict[str, Any]) -> str:
    """Return the text in which transformers writes an image."""
    writer = Lfm2VlProcessor.__new__(Lfm2VlProcessor)
    writer.image_token, writer.image_thumbnail_token = "<image>", "<|img_thumbnail|>"
    writer.image_start_token, writer.image_end_token = "<|image_start|>", "<|image_end|>"
    side = SETTINGS["encoder_patch_size"]
    per_tile = writer._compute_tokens_per_tile(SETTINGS["tile_size"], side, 2)
    whole = writer._compute_tokens_for_image(image["image_sizes"][0], side, 2)
    return writer._build_image_tokens(image["rows"][0], image["cols"][0], per_tile, whole, True, True)


async def test_alone_cached_in_chunks_and_in_one_batch(tmp_path):
    model = save_lfm2_vl(tmp_path).float().eval()
    model.generation_config.eos_token_id = None
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    async with served(tmp_path, "lfm2-vl", max_model_len=256, max_num_batched_tokens=64) as llm, client_of(llm) as http:
        alone = [await chat(http, content) for content in CHATS]
        together = await asyncio.gather(*(chat(http, content) for content in CHATS))

    for content, first, second in zip(CHATS, alone, together, strict=True):
        check(model, tokenizer, list(content), first)
        check(model, tokenizer, list(content), second)


async def test_a_request_chooses_the_tiles(tmp_path):
    save_lfm2_vl(tmp_path)
    async with served(tmp_path, "lfm2-vl-tiles", max_model_len=256) as llm, client_of(llm) as http:
        tiles = await chat(http, [WIDE])
        whole = await chat(http, [WIDE], mm_processor_kwargs={"do_image_splitting": False})
        body = {"messages": [{"role": "user", "content": "x"}]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    assert len(whole.prompt) < len(tiles.prompt)
