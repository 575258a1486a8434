"""Images in prompts, through all four services: tokens and log-probabilities are those of transformers' whole model."""

import asyncio
import base64
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.lora_files import merged, save_lora
from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_kinds import KINDS
from tests.vision_reference import VisionReference
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.llm.model_directory import ModelDirectory

NUM_TOKENS = 16
TOLERANCE = 2e-4
MAIN = ("smolvlm", "qwen3_vl", "qwen3_5")
"""Kinds that stand for the others: tiles, patches of every size with DeepStack, states."""
WITH_STATES = ("qwen3_5", "qwen3_5_moe")
WITH_WINDOWS = ("gemma3", "mistral3", "mistral3 of ministral3")
"""Their windows free blocks, so that few requests are preempted."""
MARKED = [kind if kind in MAIN else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS]
SMALL, WIDE, TALL = picture(60, 40, 1), picture(200, 50, 2, "JPEG"), picture(40, 90, 3, "WEBP")

Content = Sequence[str | bytes]
"""The texts and image files of a message."""
CHATS: Sequence[Content] = [
    ["What is on", SMALL, "this one?"],
    [SMALL, "Compare", WIDE, "with it."],
    ["No image, as others have it."],
    [TALL],
    ["a " * 30, TALL, "b " * 20, SMALL, WIDE],
    [SMALL, "Compare", TALL, "with it."],
]


@dataclass(frozen=True)
class Answer:
    """Tokens of a prompt and of its answer, the answer's log-probabilities, prompt tokens from the prefix cache."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    num_cached: int = 0


@dataclass(frozen=True)
class Case:
    """A tiny model, and what transformers answers to `CHATS`."""

    directory: Path
    expected: list[Answer]


@pytest.fixture(autouse=True)
def one_image_process(monkeypatch):
    """A second one takes seconds to start."""
    monkeypatch.setenv("TETRAD_TOKENIZER_IMAGE_PROCESSES", "1")


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    """Return a maker of cases; each is made once."""
    made: dict[str, Case] = {}

    def case(kind: str) -> Case:
        if kind not in made:
            directory = tmp_path_factory.mktemp("images")
            save_vision_model(directory, kind)
            reference = VisionReference(directory)
            made[kind] = Case(directory, [expected(reference, content) for content in CHATS])
        return made[kind]

    return case


def expected(reference: VisionReference, content: Content) -> Answer:
    parts = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in content]
    images = [part for part in content if isinstance(part, bytes)]
    prepared = reference.prepare([{"role": "user", "content": parts}], images)
    generated = reference.generate(prepared, NUM_TOKENS)
    return Answer(prepared.token_ids, generated.token_ids, generated.logprobs_of_tokens())


def image_part(data: bytes, **fields: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}} | fields


def asked(content: Content | list[dict], **fields: object) -> dict:
    parts = [
        part if isinstance(part, dict) else {"type": "text", "text": part} if isinstance(part, str) else image_part(part)
        for part in content
    ]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return body | {"logprobs": True, "return_token_ids": True} | fields


@asynccontextmanager
async def client_of(llm) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(ModelDirectory.alone(llm), llm.settings, Guard(llm.settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as http:
        yield http


async def chat(http: httpx.AsyncClient, content: Content | list[dict], **fields: object) -> Answer:
    answer = await http.post("/v1/chat/completions", json=asked(content, **fields))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    [choice] = body["choices"]
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    details = body["usage"]["prompt_tokens_details"] or {}
    return Answer(body["prompt_token_ids"], choice["token_ids"], logprobs, details.get("cached_tokens", 0))


async def begun(llm, calls: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Return the answers of calls, all of which wait when the first step begins."""
    await llm.engine_admin.pause("keep", clear_cache=False)
    running = asyncio.gather(*calls)
    while (await llm.engine_admin.loads_known())[0].scheduler.num_waiting < len(calls):  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(0.01)
    await llm.engine_admin.resume()
    return await running


async def refusal(http: httpx.AsyncClient, *content: str | bytes | dict) -> tuple[int, str, str]:
    answer = await http.post("/v1/chat/completions", json=asked(content))
    error = answer.json()["error"]
    return answer.status_code, error["message"], error["param"]


def check(answers: Sequence[Answer], case: Case) -> None:
    for answer, right in zip(answers, case.expected, strict=True):
        assert answer.prompt == right.prompt
        assert answer.token_ids == right.token_ids
        assert answer.logprobs == pytest.approx(right.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("kind", MARKED)
async def test_alone_cached_and_in_one_batch(kind, case_of):
    case = case_of(kind)
    async with served(case.directory, f"whole-{kind}", max_model_len=512) as llm, client_of(llm) as http:
        alone = [await chat(http, content) for content in CHATS]
        again = [await chat(http, content) for content in CHATS]
        together = await asyncio.gather(*(chat(http, content) for content in CHATS))

    check(alone, case)
    check(again, case)
    check(together, case)
    assert all(answer.num_cached >= len(answer.prompt) - 8 for answer in again)


@pytest.mark.parametrize("kind", MARKED)
async def test_in_chunks_that_end_inside_an_image_and_preempted(kind, case_of):
    case = case_of(kind)
    longest = max(len(each.prompt) for each in case.expected) + NUM_TOKENS
    num_blocks = -(-longest // 8) + (14 if kind in WITH_STATES else 3)
    options = {"max_num_batched_tokens": 16, "max_model_len": longest, "num_gpu_blocks_override": num_blocks}
    async with served(case.directory, f"chunks-{kind}", **options) as llm, client_of(llm) as http:
        for times in range(1, 6):  # on a busy machine, encoding may keep few requests apart
            answers = await begun(llm, [chat(http, content) for content in CHATS * times])
            check(answers, Case(case.directory, case.expected * times))
            stats = (await llm.engine_admin.loads_known())[0].scheduler
            if stats.num_preemptions or kind in WITH_WINDOWS:
                break
    assert stats.num_preemptions > 0 or kind in WITH_WINDOWS


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_lost_service_changes_no_token(killed, case_of):
    case = case_of("qwen3_vl")
    async with restartable(case.directory, f"killed-{killed}", max_model_len=512) as services, client_of(services.llm) as http:
        running = asyncio.gather(*(chat(http, content, max_tokens=40) for content in CHATS))
        await steps_pass(services.llm, 6)
        assert not running.done()
        await kill(services, killed)
        answers = await running
    first = [Answer(each.prompt, each.token_ids[:NUM_TOKENS], each.logprobs[:NUM_TOKENS]) for each in answers]
    check(first, case)


@pytest.mark.parametrize("kind", MARKED)
async def test_adapters_see_images(kind, tmp_path):
    """An adapter as PEFT names it for the whole model has the tokens of the merged model, beside requests without it."""
    save_vision_model(tmp_path / "model", kind)
    reference = VisionReference(tmp_path / "model")
    plain = expected(reference, CHATS[0])
    modules = "(language_model|text_model).*(q_proj|v_proj|o_proj)"
    adapter = save_lora(tmp_path / "adapter", reference.model, modules)
    reference.model = merged(reference.model, adapter)
    adapted = expected(reference, CHATS[0])
    options = {"max_model_len": 512, "enable_lora": True, "frontend": {"lora_modules": (f"adapter={adapter}",)}}

    async with served(tmp_path / "model", f"adapter-{kind}", **options) as llm, client_of(llm) as http:
        names = [{}, {"model": "adapter"}] * 2
        answers = await asyncio.gather(*(chat(http, CHATS[0], **name) for name in names))

    check(answers, Case(tmp_path, [plain, adapted] * 2))
    assert adapted.logprobs != pytest.approx(plain.logprobs, abs=0.01)


async def test_images_under_names(case_of):
    """An image that was seen under its name needs no data any more; a name that was not seen is refused."""
    case = case_of("qwen2_5_vl")
    async with served(case.directory, "names", max_model_len=512) as llm, client_of(llm) as http:
        named = [{"type": "text", "text": "What is on"}, image_part(SMALL, uuid="one"), {"type": "text", "text": "this one?"}]
        first = await chat(http, named)
        named[1] = {"type": "image_url", "image_url": None, "uuid": "one"}
        again = await chat(http, named)
        named[1] = {"type": "image_url", "image_url": None, "uuid": "other"}
        refused = await refusal(http, *named)

    check([first, again], Case(case.directory, [case.expected[0]] * 2))
    assert again.num_cached >= len(again.prompt) - 8
    assert refused == (400, "Cache miss for image at index 0 but data is not provided.", "messages[0].content[1]")


async def test_reset_caches_of_media_hold_nothing(case_of):
    """The embeddings are computed again and are the same; a name without data is refused."""
    case = case_of("qwen2_5_vl")
    async with served(case.directory, "resets", max_model_len=512) as llm, client_of(llm) as http:
        named = [{"type": "text", "text": "What is on"}, image_part(SMALL, uuid="one"), {"type": "text", "text": "this one?"}]
        answers = [await chat(http, named)]
        for reset in (llm.engine_admin.reset_encoder_cache, llm.reset_mm_cache):
            await reset()
            assert await llm.engine_admin.reset_prefix_cache()
            answers.append(await chat(http, named))
        await llm.reset_mm_cache()
        named[1] = {"type": "image_url", "image_url": None, "uuid": "one"}
        refused = await refusal(http, *named)

    check(answers, Case(case.directory, [case.expected[0]] * 3))
    assert refused[:2] == (400, "Cache miss for image at index 0 but data is not provided.")


async def test_images_that_cannot_be_read_are_refused_and_others_go_on(case_of):
    case = case_of("smolvlm")
    async with served(case.directory, "bad", max_model_len=512) as llm, client_of(llm) as http:
        good = asyncio.gather(*(chat(http, content) for content in CHATS))
        for data in (SMALL[: len(SMALL) // 2], b"no image", b""):
            status, _, param = await refusal(http, "What is on", data)
            assert (status, param) == (400, "messages[0].content[1]")
        status, text, _ = await refusal(http, *([SMALL] * 30))
        assert (status, "maximum context length is 512 tokens" in text) == (400, True)
        check(await good, case)
