"""Models that read audio: embeddings, tokens and log-probabilities equal those of transformers' whole model."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.audio_files import AUDIO_KINDS, save_audio_model
from tests.audio_reference import AudioReference
from tests.sounds import samples
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.media.audio_prompts import AudioPrompt, audio_prompt
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import EncoderItem, SamplingSpec
from tetrad.worker_svc.families.towers import READS_AUDIO
from tetrad.worker_svc.media.audio_reader import AUDIO_KINDS as READ
from tetrad.worker_svc.media.tower_loading import count_parameters, load_tower

LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0)
COUNT = 5
MOST = {"qwen2_audio": 50, "audioflamingo3": 4 * 50, "glmasr": 3 * 25, "qwen3_asr": 600 * 13}
"""Embeddings of the longest audio: of one window or several, or of 600 seconds."""
SHORT, LONG, OTHER = samples(1.3), samples(3.4, seed=1), samples(0.6, seed=2)


class Model:
    """A tiny model, transformers' reference, and a loaded model whose encoder cache has the audio of its prompts."""

    def __init__(self, directory, kind, load):
        save_audio_model(directory, kind)
        self.reference, self.loaded = AudioReference(directory), load(directory)

    def prompt(self, *parts) -> AudioPrompt:
        """Return a prompt whose audio is in the cache afterwards."""
        prompt = audio_prompt(self.reference, parts)
        for item in prompt.items:
            self.loaded.media.cache.put(0, item.identifier, self.loaded.media.tower.encode(item), 0)
        return prompt

    def driver(self) -> Driver:
        return Driver(self.loaded.make_runner(LAYOUT))


@pytest.fixture
def make(tmp_path, load):
    return lambda kind: Model(tmp_path, kind, load)


def add(driver, handle, prompt):
    return driver.add(handle, prompt.token_ids, LOGPROBS, media=prompt.spans)


def logprobs_of(request):
    return np.array([row[1][0] for row in request.logprobs])


def check(request, reference, prompt):
    expected = reference.generate(prompt.prepared, COUNT)
    assert request.output[:COUNT] == expected.token_ids
    assert np.abs(logprobs_of(request)[:COUNT] - expected.logprobs_of_tokens()).max() < 1e-4


def test_the_list_of_architectures_names_all() -> None:
    assert set(READ) == READS_AUDIO


@pytest.mark.parametrize("kind", AUDIO_KINDS)
def test_prompts_of_audio_and_text_in_one_batch_and_in_chunks(kind, make):
    model = make(kind)
    prompts = [model.prompt(SHORT), model.prompt("Compare ", LONG, " with ", OTHER, "."), model.prompt("Hi")]

    driver = model.driver()
    requests = [add(driver, handle, prompt) for handle, prompt in enumerate(prompts)]
    driver.generate(COUNT, chunk=7)

    for request, prompt in zip(requests, prompts, strict=True):
        check(request, model.reference, prompt)


def test_alone_in_a_batch_in_chunks_and_after_a_preemption_the_results_are_equal(make):
    model = make("qwen2_audio")
    prompt, other = model.prompt("What? ", SHORT), model.prompt(OTHER, "and", LONG)
    alone, batched, preempted = model.driver(), model.driver(), model.driver()
    first = add(alone, 0, prompt)
    alone.generate(COUNT)

    add(batched, 1, other)
    second = add(batched, 0, prompt)
    batched.generate(COUNT, chunk=5)
    add(preempted, 0, prompt)
    preempted.generate(2)
    before = preempted.remove(0)
    third = add(preempted, 0, prompt)
    third.output, third.logprobs, third.num_tokens = before.output, before.logprobs, before.num_tokens
    preempted.generate(COUNT)

    assert first.output[:COUNT] == second.output[:COUNT] == third.output[:COUNT]
    assert logprobs_of(first)[:COUNT].tolist() == logprobs_of(second)[:COUNT].tolist()


@pytest.mark.parametrize("kind", AUDIO_KINDS)
def test_the_tower_announces_its_size(kind, make):
    model = make(kind)
    tower = model.loaded.media.tower

    weights = model.reference.model.named_parameters()
    whole = sum(each.numel() for name, each in weights if "audio" in name or "projector" in name)
    prepared = model.reference.prepare([samples(7.9)])

    assert count_parameters(model.reference.model.config.to_dict() | {"architectures": [AUDIO_KINDS[kind].architecture]}) > 0
    assert tower.num_parameters >= whole
    [modality] = tower.modalities
    assert modality.modality == "audio"
    assert prepared.num_embeds[0] <= modality.max_embeds_per_item == MOST[kind]
    assert tower.activation_bytes(50) > 0


def test_names_of_older_files_are_read(make, tmp_path):
    """The published files have one prefix less than those that transformers saves."""
    from safetensors.torch import load_file, save_file

    model = make("qwen2_audio")
    old = tmp_path / "old"
    shutil.copytree(tmp_path, old, ignore=shutil.ignore_patterns("old"))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors[name.replace("model.model.model.", "model.model.")] = tensor
    save_file(tensors, old / "model.safetensors", metadata={"format": "pt"})

    tower = load_tower(LoadRequest("old", old), torch.float32, torch.device("cpu"), has_own_thread=True)

    [item] = model.prompt(SHORT).items
    assert np.array_equal(tower.encode(item).rows, model.loaded.media.tower.encode(item).rows)


def test_files_without_a_feature_extractor_give_a_model_of_text(tmp_path, load):
    save_audio_model(tmp_path, "qwen2_audio")
    (tmp_path / "preprocessor_config.json").unlink()

    assert load(tmp_path).media is None


def test_items_that_do_not_fit_are_refused(make):
    model = make("qwen2_audio")
    prompt, tower = model.prompt(SHORT), model.loaded.media.tower
    [item] = prompt.items
    features = item.tensors["input_features"]

    for tensors, reason in [
        ({}, "needs the tensors 'input_features' and 'feature_attention_mask'; it has none"),
        (
            item.tensors | {"input_features": features[:, :-2]},
            r"float32 \[1, 128, 198\] with marks \[1, 200\]; the model takes",
        ),
        (item.tensors | {"input_features": features.astype(np.float64)}, "The audio is float64"),
        (item.tensors | {"feature_attention_mask": np.ones((2, 200), np.int64)}, "The audio is float32"),
    ]:
        with pytest.raises(InvalidRequest, match=reason):
            tower.encode(replace_tensors(item, tensors))
    driver = model.driver()
    driver.add(0, prompt.token_ids, LOGPROBS, media=(replace(prompt.spans[0], modality="image"),))
    [(_, found)] = driver.runner.execute(driver.plan({0: 4})).failures
    assert isinstance(found, Unsupported)
    assert "'audio', not 'image'" in found.message


def replace_tensors(item: EncoderItem, tensors: dict[str, np.ndarray]) -> EncoderItem:
    return EncoderItem(item.identifier, item.modality, tensors, item.num_embeds)


def test_settings_may_be_in_the_processors_file(tmp_path, load):
    save_audio_model(tmp_path, "audioflamingo3")
    extractor = json.loads((tmp_path / "preprocessor_config.json").read_text())
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps(processor | {"feature_extractor": extractor}))
    (tmp_path / "preprocessor_config.json").unlink()

    assert load(tmp_path).media.tower.modalities[0].max_embeds_per_item == 4 * 50
