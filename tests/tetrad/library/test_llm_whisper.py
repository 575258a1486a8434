"""LLM with Whisper: both of vLLM's forms of a prompt have the tokens of transformers' model."""

import signal

import psutil
import pytest

from tests.e2e.test_whisper import TASK, Reference
from tests.sounds import encoded, samples
from tests.whisper_files import START
from tetrad import LLM, BeamSearchParams, SamplingParams
from tetrad.services.errors import InvalidRequest, Unsupported

COUNT = 6
PARAMS = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True, detokenize=False)
GIVEN, OTHER = samples(1.3, seed=28), samples(0.6, seed=2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    return Reference(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def llm(reference):
    with LLM(str(reference.directory), device="cpu", threads=1, dtype="float32", kv_cache_memory_gib=0.05) as llm:
        yield llm


def tokens(outputs) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def of_encoder(audio, decoder=TASK) -> dict:
    return {"encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": audio}}, "decoder_prompt": decoder}


def test_every_form_of_a_prompt_has_the_tokens_of_transformers(llm, reference):
    plain = {"prompt": TASK, "multi_modal_data": {"audio": (GIVEN, 16_000)}}
    ids = {"prompt_token_ids": reference.ids(TASK), "multi_modal_data": {"audio": [GIVEN]}}
    prompts = [plain, ids, of_encoder((GIVEN, 16_000)), of_encoder(encoded(GIVEN, codec="pcm_f32le")), of_encoder(OTHER)]

    found = tokens(llm.generate(prompts, PARAMS, use_tqdm=False))

    expected = reference.answer(TASK, GIVEN, COUNT).token_ids
    assert found == [expected] * 4 + [reference.answer(TASK, OTHER, COUNT).token_ids]


def test_a_decoders_prompt_may_be_missing(llm, reference):
    [output] = llm.generate(of_encoder((GIVEN, 16_000), None), PARAMS, use_tqdm=False)

    assert output.prompt_token_ids == reference.ids(START)
    assert tokens([output]) == [reference.answer(START, GIVEN, COUNT).token_ids]


def test_beams_begin_with_the_greedy_text_of_one_beam(llm, reference):
    [found] = llm.beam_search([of_encoder((GIVEN, 16_000))], BeamSearchParams(beam_width=1, max_tokens=COUNT, ignore_eos=True))

    assert found.sequences[0].tokens[-COUNT:] == reference.answer(TASK, GIVEN, COUNT).token_ids


def test_killed_worker_changes_no_token(llm, reference):
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [of_encoder((audio, 16_000)) for audio in (GIVEN, OTHER)]
    # The services of an LLM are children of its process; those of other tests' servers are grandchildren.
    [worker] = [each for each in psutil.Process().children() if "tetrad.worker_svc" in each.cmdline()]
    llm.enqueue(prompts, params)
    worker.send_signal(signal.SIGKILL)

    found = tokens(llm.wait_for_completion(use_tqdm=False))

    assert found == [reference.answer(TASK, audio, 100).token_ids for audio in (GIVEN, OTHER)]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (TASK, "a prompt needs exactly 1 audio: it transcribes"),
        ({"encoder_prompt": "heard", "decoder_prompt": TASK}, "encoder_prompt needs multi_modal_data"),
        (of_encoder([GIVEN, OTHER]), "At most 1 audio"),
        (of_encoder((GIVEN, 16_000), {"prompt": TASK, "multi_modal_data": {"audio": GIVEN}}), "to decoder prompt"),
    ],
    ids=["no audio", "a text", "two", "audio for the decoder"],
)
def test_other_prompts_are_refused(llm, prompt, text):
    with pytest.raises((InvalidRequest, Unsupported), match=text):
        llm.generate(prompt, PARAMS, use_tqdm=False)


def test_its_task_is_transcription(llm):
    assert llm.get_supported_tasks() == ("transcription",)
