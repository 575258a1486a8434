"""LLM with audio: every form of a prompt has the tokens of transformers' model."""

import base64

import numpy as np
import pytest
import torch

from tests.audio_files import save_audio_model
from tests.audio_reference import AudioReference
from tests.one_process_llm import services_in_process
from tests.sounds import encoded, samples
from tetrad import LLM, SamplingParams
from tetrad.services.errors import InvalidRequest

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
# All tokens that follow are of the tokenizer: the model has more.
GIVEN, OTHER = samples(1.3, seed=28), samples(0.6, seed=2)
FILE = encoded(GIVEN, codec="pcm_f32le")
PARTS = ["What? ", GIVEN]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("audio") / "model"
    save_audio_model(path, "qwen2_audio")
    return path


@pytest.fixture(scope="module")
def reference(directory):
    return AudioReference(directory)


@pytest.fixture(scope="module")
def llm(directory):
    arguments = {"device": "cpu", "threads": 1, "dtype": "float32", "kv_cache_memory_gib": 0.05, "max_model_len": 512}
    with (
        services_in_process(),
        LLM(str(directory), **arguments, limit_mm_per_prompt={"audio": 2}, enable_mm_embeds=True) as llm,
    ):
        yield llm


def tokens(outputs) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_every_form_of_audio_has_the_tokens_of_transformers(llm, reference):
    text = reference.text_of(PARTS)
    expected = reference.generate(reference.prepare(PARTS), 6).token_ids
    forms = [FILE, GIVEN, (GIVEN, 16_000), [(GIVEN, 16_000)], GIVEN.tolist()]

    outputs = llm.generate([{"prompt": text, "multi_modal_data": {"audio": form}} for form in forms], PARAMS, use_tqdm=False)

    assert tokens(outputs) == [expected] * len(forms)


def test_embeddings_in_place_of_audio_have_its_tokens(llm, reference):
    prepared, found = reference.prepare(PARTS), []
    projector = next(each for name, each in reference.model.named_modules() if name.endswith("multi_modal_projector"))
    hook = projector.register_forward_hook(lambda _module, _inputs, output: found.append(output))
    expected = reference.generate(prepared, 6).token_ids
    hook.remove()
    rows = found[0][0, : prepared.num_embeds[0]]

    prompt = {"prompt": reference.text_of(PARTS), "multi_modal_data": {"audio": [rows]}}
    [output] = llm.generate([prompt], PARAMS, use_tqdm=False)

    assert list(output.outputs[0].token_ids) == expected
    assert output.prompt_token_ids == prepared.token_ids


def test_a_conversation(llm, reference):
    data = base64.b64encode(FILE).decode()
    parts = [
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
    ]
    expected = reference.generate(reference.prepare(PARTS), 6).token_ids

    chats = [[{"role": "user", "content": [{"type": "text", "text": "What? "}, part]}] for part in parts]

    assert tokens(llm.chat(chats, PARAMS, use_tqdm=False)) == [expected] * 2


def test_ids_several_audios_and_samples_that_share_a_prefix(llm, reference):
    prepared = reference.prepare([GIVEN, OTHER, "or"])
    token_ids = llm.get_tokenizer().encode(reference.text_of([GIVEN, OTHER, "or"]))

    prompt = {"prompt_token_ids": token_ids, "multi_modal_data": {"audio": [GIVEN, OTHER]}}
    [output] = llm.generate([prompt], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, n=2), use_tqdm=False)

    expected = reference.generate(prepared, 6).token_ids
    assert [list(each.token_ids) for each in output.outputs] == [expected] * 2
    assert output.prompt_token_ids == prepared.token_ids


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"audio": [GIVEN] * 3}, "At most 2 audio(s) may be provided in one prompt."),
        ({"audio": b"noise"}, "Failed to load audio 0"),
        ({"audio": np.zeros(10, np.float32)}, "too short to be represented inside the model"),
        ({"audio": [torch.zeros(4, 3)]}, "hidden dimension mismatch: got 3, but model expects"),
        ({"image": b"a"}, "At most 0 image(s) may be provided in one prompt."),
    ],
)
def test_other_prompts_are_refused(llm, data, message):
    with pytest.raises(InvalidRequest) as refused:
        llm.generate([{"prompt": "<|AUDIO|>", "multi_modal_data": data}], PARAMS, use_tqdm=False)

    assert message in refused.value.message
