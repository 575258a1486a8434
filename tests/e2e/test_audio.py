"""Audio in prompts, through all four services: tokens and log-probabilities are those of transformers' whole model."""

import asyncio
import base64
from collections.abc import Sequence

import numpy as np
import pytest

from tests.audio_files import AUDIO_KINDS, save_audio_model
from tests.audio_reference import AudioReference
from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.e2e.test_images import NUM_TOKENS, Answer, Case, begun, chat, check, client_of, refusal
from tests.lora_files import merged, save_lora
from tests.sounds import Samples, encoded, samples

SHORT, LONG, OTHER = samples(1.3, seed=1), samples(3.4, seed=2), samples(0.5, seed=3)
CHATS: Sequence[Sequence[str | Samples]] = [
    ["What is said ", SHORT, " here?"],
    [SHORT, "Compare ", LONG, "with it."],
    ["No audio, as others have it."],
    [OTHER],
    ["a " * 30, OTHER, "b " * 20, SHORT, LONG],
    [SHORT, "Compare ", OTHER, "with it."],
]
MARKED = [kind if kind == "qwen2_audio" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in AUDIO_KINDS]


def expected(reference: AudioReference, content: Sequence[str | Samples]) -> Answer:
    prepared = reference.prepare(content)
    generated = reference.generate(prepared, NUM_TOKENS)
    return Answer(prepared.token_ids, generated.token_ids, generated.logprobs_of_tokens())


def parts_of(content: Sequence[str | Samples]) -> list[dict]:
    return [{"type": "text", "text": part} if isinstance(part, str) else audio_part(part) for part in content]


def audio_part(given: Samples | bytes, **fields: object) -> dict:
    file = given if isinstance(given, bytes) else encoded(given, codec="pcm_f32le")
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file).decode(), "format": "wav"}} | fields


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    """Return a maker of cases; each is made once."""
    made: dict[str, Case] = {}

    def case(kind: str) -> Case:
        if kind not in made:
            directory = tmp_path_factory.mktemp("audio")
            save_audio_model(directory, kind)
            reference = AudioReference(directory)
            made[kind] = Case(directory, [expected(reference, content) for content in CHATS])
        return made[kind]

    return case


@pytest.mark.parametrize("kind", MARKED)
async def test_alone_cached_and_in_one_batch(kind, case_of):
    case = case_of(kind)
    async with served(case.directory, f"audio-{kind}", max_model_len=512) as llm, client_of(llm) as http:
        alone = [await chat(http, parts_of(content)) for content in CHATS]
        again = [await chat(http, parts_of(content)) for content in CHATS]
        together = await asyncio.gather(*(chat(http, parts_of(content)) for content in CHATS))

    check(alone, case)
    check(again, case)
    check(together, case)
    assert all(answer.num_cached >= len(answer.prompt) - 8 for answer in again)


@pytest.mark.parametrize("kind", MARKED)
async def test_in_chunks_that_end_inside_audio_and_preempted(kind, case_of):
    case = case_of(kind)
    longest = max(len(each.prompt) for each in case.expected) + NUM_TOKENS
    options = {"max_num_batched_tokens": 16, "max_model_len": longest, "num_gpu_blocks_override": -(-longest // 8) + 3}
    async with served(case.directory, f"audio-chunks-{kind}", **options) as llm, client_of(llm) as http:
        answers = await begun(llm, [chat(http, parts_of(content)) for content in CHATS])
        again = await asyncio.gather(*(chat(http, parts_of(content)) for content in CHATS))

        stats = (await llm.engine_admin.loads_known())[0].scheduler
    check(answers, case)
    check(again, case)
    assert stats.num_preemptions > 0 or kind != "qwen2_audio"  # with longer prompts, fewer run at a time


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_lost_service_changes_no_token(killed, case_of):
    case = case_of("qwen2_audio")
    async with restartable(case.directory, f"audio-{killed}", max_model_len=512) as services, client_of(services.llm) as http:
        running = asyncio.gather(*(chat(http, parts_of(content), max_tokens=40) for content in CHATS))
        await steps_pass(services.llm, 6)
        assert not running.done()
        await kill(services, killed)
        answers = await running
    check([Answer(each.prompt, each.token_ids[:NUM_TOKENS], each.logprobs[:NUM_TOKENS]) for each in answers], case)


async def test_adapters_hear_audio(tmp_path):
    """An adapter of the text model has the tokens of the merged model, beside requests without it."""
    save_audio_model(tmp_path / "model", "qwen2_audio")
    reference = AudioReference(tmp_path / "model")
    plain = expected(reference, CHATS[0])
    adapter = save_lora(tmp_path / "adapter", reference.model, "language_model.*(q_proj|v_proj|o_proj)")
    reference.model = merged(reference.model, adapter)
    adapted = expected(reference, CHATS[0])
    options = {"max_model_len": 512, "enable_lora": True, "frontend": {"lora_modules": (f"adapter={adapter}",)}}

    async with served(tmp_path / "model", "audio-adapter", **options) as llm, client_of(llm) as http:
        names = [{}, {"model": "adapter"}] * 2
        answers = await asyncio.gather(*(chat(http, parts_of(CHATS[0]), **name) for name in names))

    check(answers, Case(tmp_path, [plain, adapted] * 2))
    assert adapted.logprobs != pytest.approx(plain.logprobs, abs=0.01)


async def test_audio_that_cannot_be_read_is_refused_and_others_go_on(case_of):
    case = case_of("qwen2_audio")
    async with served(case.directory, "audio-bad", max_model_len=512) as llm, client_of(llm) as http:
        good = asyncio.gather(*(chat(http, parts_of(content)) for content in CHATS))
        for data in (encoded(SHORT)[:40], b"no audio", encoded(np.zeros(20, np.float32))):
            status, text, param = await refusal(http, audio_part(data))
            assert (status, param) == (400, "messages[0].content[0]")
            assert text.startswith("Failed to load audio 0")
        named = audio_part(SHORT, uuid="one")
        await chat(http, [named])
        await chat(http, [{"type": "input_audio", "input_audio": None, "uuid": "one"}])
        status, text, _ = await refusal(http, {"type": "input_audio", "input_audio": None, "uuid": "two"})
        assert (status, text) == (400, "Cache miss for audio at index 0 but data is not provided.")
        status, text, _ = await refusal(http, *([audio_part(LONG)] * 12))
        assert (status, "maximum context length is 512 tokens" in text) == (400, True)
        check(await good, case)
