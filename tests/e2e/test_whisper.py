"""Whisper through all four services: tokens and log-probabilities are those of transformers' whole model."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, WhisperFeatureExtractor

from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.sounds import encoded, samples
from tests.whisper_files import NO_TIMES, PREVIOUS, START, save_whisper, whisper_tokenizer
from tetrad import BeamSearchParams, RequestOutput, SamplingParams
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import beam_search
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.services.errors import InvalidRequest

NUM_TOKENS = 16
SECONDS = 2
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, detokenize=False)
TASK = f"{START}<|en|><|transcribe|>{NO_TIMES}"
PROMPTS = (
    (TASK, samples(1.5, seed=1)),
    (f"{START}<|de|><|translate|>{NO_TIMES}", samples(1.5, seed=1)),
    (f"{PREVIOUS} earlier words, of which there are some more{TASK}", samples(0.4, seed=2)),
    (TASK, samples(2.7, seed=3)),
    (f"{TASK} and it goes on", samples(1.1, seed=4)),
)
"""Texts before the answer, and what is heard."""


@dataclass(frozen=True)
class Answer:
    """Tokens and their log-probabilities."""

    token_ids: list[int]
    logprobs: list[float]


class Reference:
    """A tiny model, and transformers' own."""

    def __init__(self, directory: Path, **sizes: int) -> None:
        self.directory, self.model = directory, save_whisper(directory, num_seconds=SECONDS, **sizes)
        self._extractor = WhisperFeatureExtractor.from_pretrained(directory)
        self.tokenizer = whisper_tokenizer()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def features(self, heard: np.ndarray) -> torch.Tensor:
        return self._extractor(heard, sampling_rate=16_000, return_tensors="pt").input_features

    @torch.inference_mode()
    def answer(self, text: str, heard: np.ndarray, count: int = NUM_TOKENS) -> Answer:
        """Return `count` greedy tokens."""
        ids, found = self.ids(text), Answer([], [])
        encoded_audio = self.model.model.encoder(self.features(heard))
        for _ in range(count):
            logits = self.model(encoder_outputs=encoded_audio, decoder_input_ids=torch.tensor([ids + found.token_ids])).logits
            logprobs = logits[0, -1].log_softmax(-1)
            found.token_ids.append(int(logprobs.argmax()))
            found.logprobs.append(float(logprobs.max()))
        return found


@pytest.fixture(autouse=True)
def one_audio_process(monkeypatch):
    """A second one takes seconds to start."""
    monkeypatch.setenv("TETRAD_TOKENIZER_AUDIO_PROCESSES", "1")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    return Reference(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def expected(reference) -> list[Answer]:
    return [reference.answer(text, heard) for text, heard in PROMPTS]


def prompt_of(text: str, heard: np.ndarray) -> dict:
    return {"prompt": text, "multi_modal_data": {"audio": encoded(heard, codec="pcm_f32le")}}


async def output(llm: AsyncLLM, prompt: dict, params: SamplingParams = GREEDY, name: str = "r") -> RequestOutput:
    stream = await llm.add_request(name, prompt, params)
    return [each async for each in stream][-1]


async def outputs(llm: AsyncLLM, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    """Return the outputs of all prompts, which come together."""
    return await asyncio.gather(*(output(llm, prompt_of(*each), params, f"r{place}") for place, each in enumerate(PROMPTS)))


def check(found: Sequence[RequestOutput], expected: Sequence[Answer]) -> None:
    for request, right in zip(found, expected, strict=True):
        [sequence] = request.outputs
        assert list(sequence.token_ids[:NUM_TOKENS]) == right.token_ids
        logprobs = [
            position[token_id].logprob for position, token_id in zip(sequence.logprobs, sequence.token_ids, strict=True)
        ]
        assert logprobs[:NUM_TOKENS] == pytest.approx(right.logprobs, abs=1e-4)


async def test_alone_cached_and_in_one_batch(reference, expected):
    async with served(reference.directory, "whisper-whole") as llm:
        alone = [await output(llm, prompt_of(*each)) for each in PROMPTS]
        again = [await output(llm, prompt_of(*each)) for each in PROMPTS]
        together = await outputs(llm)

    for found in (alone, again, together):
        check(found, expected)
    assert [request.prompt_token_ids for request in alone] == [reference.ids(text) for text, _ in PROMPTS]
    assert again[2].num_cached_tokens >= 40
    assert alone[2].num_cached_tokens == 0


async def test_in_chunks_and_preempted(reference, expected):
    longest = max(len(reference.ids(text)) for text, _ in PROMPTS) + NUM_TOKENS
    options = {"max_num_batched_tokens": 16, "max_model_len": longest, "num_gpu_blocks_override": -(-longest // 8) + 3}
    async with served(reference.directory, "whisper-chunks", **options) as llm:
        found = await outputs(llm)
        stats = (await llm.engine_admin.loads_known())[0].scheduler

    check(found, expected)
    assert stats.num_preemptions > 0


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3})},
        {"enable_chunked_prefill": False, "enable_prefix_caching": False},
        {"swap_space": 0.01, "num_gpu_blocks_override": 40},
    ],
    ids=min,
)
async def test_options_change_no_token(options, reference, expected):
    async with served(reference.directory, f"whisper-{min(options)}", **options) as llm:
        check(await outputs(llm), expected)
        check(await outputs(llm), expected)


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_lost_service_changes_no_token(killed, reference, expected):
    async with restartable(reference.directory, f"whisper-{killed}") as services:
        longer = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0, detokenize=False)
        running = asyncio.gather(*(output(services.llm, prompt_of(*each), longer, f"r{n}") for n, each in enumerate(PROMPTS)))
        await steps_pass(services.llm, 6)
        assert not running.done()
        await kill(services, killed)
        check(await running, expected)


async def test_sequences_of_one_prompt_draw_by_their_seeds(reference):
    common = {"temperature": 1.0, "seed": 7, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
    drawn = SamplingParams(n=3, output_kind=RequestOutputKind.FINAL_ONLY, **common)
    async with served(reference.directory, "whisper-n") as llm:
        first, second = [await output(llm, prompt_of(*PROMPTS[0]), drawn) for _ in range(2)]
        [alone] = (await output(llm, prompt_of(*PROMPTS[0]), SamplingParams(**common))).outputs

    texts = [tuple(each.token_ids) for each in first.outputs]
    assert texts == [tuple(each.token_ids) for each in second.outputs]
    assert len(set(texts)) == 3
    assert texts[0] == tuple(alone.token_ids)


async def test_log_probabilities_of_the_prompt(reference):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    text, heard = PROMPTS[4]
    ids = reference.ids(text)
    with torch.inference_mode():
        logits = reference.model(input_features=reference.features(heard), decoder_input_ids=torch.tensor([ids])).logits
    rows = logits[0].log_softmax(-1)

    async with served(reference.directory, "whisper-prompt") as llm:
        found = (await output(llm, prompt_of(text, heard), params)).prompt_logprobs

    assert found[0] is None
    theirs = [float(rows[place, token_id]) for place, token_id in enumerate(ids[1:])]
    assert [position[token_id].logprob for position, token_id in zip(found[1:], ids[1:], strict=True)] == pytest.approx(
        theirs, abs=1e-4
    )


async def test_a_stop_string_and_the_end_of_text_end_an_answer(reference, expected):
    third = reference.tokenizer.decode([expected[0].token_ids[2]], skip_special_tokens=False)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, stop_token_ids=[expected[0].token_ids[2]], ignore_eos=True)
    ends = SamplingParams(temperature=0.0, max_tokens=30, logit_bias={reference.model.config.eos_token_id: 100.0})
    async with served(reference.directory, "whisper-stop") as llm:
        [stopped] = (await output(llm, prompt_of(*PROMPTS[0]), params)).outputs
        [ended] = (await output(llm, prompt_of(*PROMPTS[0]), ends)).outputs

    assert list(stopped.token_ids) == expected[0].token_ids[:3], third
    assert (stopped.finish_reason, ended.finish_reason, len(ended.token_ids)) == ("stop", "stop", 1)


async def test_beam_search_finds_transformers_sequences(reference):
    text, heard = PROMPTS[0]
    ids, width, count = reference.ids(text), 3, 6
    found = GenerationMixin.generate(  # Whisper's own adds rules for times and silence
        reference.model,
        reference.features(heard),
        decoder_input_ids=torch.tensor([ids]),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=count,
        generation_config=GenerationConfig(eos_token_id=-1, pad_token_id=0),
    )
    async with served(reference.directory, "whisper-beams") as llm:
        params = BeamSearchParams(beam_width=width, max_tokens=count, ignore_eos=True)
        searched = await beam_search(llm, "r", prompt_of(text, heard), params)

    theirs = [row.tolist()[-count:] for row in found]
    assert [each.tokens[len(ids) :] for each in searched.sequences] == theirs


async def test_prompts_of_two_parts_and_of_ids(reference, expected):
    text, heard = PROMPTS[0]
    media = {"audio": encoded(heard, codec="pcm_f32le")}
    two = {"encoder_prompt": {"prompt": "", "multi_modal_data": media}, "decoder_prompt": text}
    ids = {"prompt_token_ids": reference.ids(text)[1:], "multi_modal_data": media}
    started = {"encoder_prompt": {"prompt": "", "multi_modal_data": media}, "decoder_prompt": None}
    async with served(reference.directory, "whisper-forms") as llm:
        check([await output(llm, two), await output(llm, ids)], [expected[0]] * 2)
        bare = await output(llm, started)

    assert bare.prompt_token_ids == reference.ids(START)
    check([bare], [reference.answer(START, heard)])


async def test_other_prompts_are_refused_and_others_go_on(reference, expected):
    audio = encoded(samples(1), codec="pcm_f32le")
    async with served(reference.directory, "whisper-refused") as llm:
        good = asyncio.create_task(outputs(llm))
        for prompt, text in (
            ({"prompt": TASK, "multi_modal_data": {}}, "has an encoder and a decoder: a prompt needs exactly 1 audio"),
            ({"prompt": TASK, "multi_modal_data": {"audio": [audio, audio]}}, "At most 1 audio"),
            ({"prompt": TASK, "multi_modal_data": {"image": b"file"}}, "At most 0 image"),
            ({"prompt": TASK, "multi_modal_data": {"audio": b"noise"}}, "Failed to load audio 0"),
            ({"prompt": TASK * 120, "multi_modal_data": {"audio": audio}}, "maximum context length is 128 tokens"),
        ):
            with pytest.raises(InvalidRequest, match=text):
                await output(llm, prompt, name="refused")
        check(await good, expected)
