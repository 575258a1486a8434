"""Photos of 12 megapixels at a model's default sizes: no option is needed, and other answers go on meanwhile."""

import asyncio
import base64
import json
import time

import httpx
import pytest

from tests.e2e.conftest import Server
from tests.pictures import picture
from tests.vision_files import save_vision_model

SIZES = {"min_pixels": 3136, "max_pixels": 12_845_056}
"""Those of Qwen2-VL."""
NUM_EMBEDS = 107 * 143
STREAM = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}
MOST_PAUSE_S = 3.0
"""Of another answer. A machine with nothing else to do takes a tenth of it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("photos")
    save_vision_model(directory / "model", "qwen2_vl")
    change(directory / "model" / "preprocessor_config.json", lambda values: values.pop("size") and values.update(SIZES))
    change(directory / "model" / "config.json", lambda values: values["text_config"].update(max_position_embeddings=65_536))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.01")
        patch.setenv("TETRAD_TOKENIZER_IMAGE_TIMEOUT_S", "60")
        server = Server(directory / "log", str(directory / "model"), "--device", "sim", "--served-model-name", "photos")
        try:
            yield server.wait_ready()
        finally:
            server.stop()


def change(path, apply):
    values = json.loads(path.read_text())
    apply(values)
    path.write_text(json.dumps(values))


def conversation(num_photos):
    photos = [base64.b64encode(picture(4000, 3000, seed, "JPEG")).decode() for seed in range(num_photos)]
    urls = [f"data:image/jpeg;base64,{photo}" for photo in photos]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}


async def longest_pause(http, ended):
    """Return the longest time between two events of a stream that runs until `ended` is set."""
    longest, last = 0.0, time.monotonic()
    async with http.stream("POST", "/v1/completions", json=STREAM) as response:
        async for _ in response.aiter_bytes():
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if ended.is_set():
                return longest
    raise AssertionError("the stream ended before the photos were answered")


async def test_three_photos_of_a_prompt_are_answered_and_delay_no_stream(server):
    ended = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        pause = asyncio.create_task(longest_pause(http, ended))
        answer = await http.post("/v1/chat/completions", json=conversation(3))
        ended.set()
        paused_s = await pause

    assert answer.status_code == 200, answer.text
    assert 3 * NUM_EMBEDS < answer.json()["usage"]["prompt_tokens"] < 3 * NUM_EMBEDS + 40
    assert paused_s < MOST_PAUSE_S
