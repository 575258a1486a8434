"""MediaAdapters: which adapter a prompt with media has, and which settings are refused."""

import json

import pytest
from pydantic import ValidationError

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.llm.media_adapters import MediaAdapters
from tetrad.frontend.media.features import MediaFeature
from tetrad.services.errors import FailedPrecondition


def adapters(*modalities):
    return MediaAdapters(modalities, AdapterNames([f"{modality}=/adapters/{modality}" for modality in modalities]))


def features(*modalities):
    return [MediaFeature(modality, "a", 0, 1, 1, None) for modality in modalities]


@pytest.mark.parametrize(
    ("modalities", "path"),
    [
        ((), None),
        (("image",), "/adapters/image"),
        (("image", "image"), "/adapters/image"),
        (("video",), None),
        (("image", "video"), "/adapters/image"),
        (("image", "audio"), None),
    ],
)
def test_a_prompt_has_the_adapter_of_its_only_modality_with_one(modalities, path):
    found = adapters("image", "audio").of(features(*modalities))

    assert (found and (found.lora_name, found.lora_path)) == (path and ("image", path))


def test_an_adapter_that_an_operator_has_unloaded_is_not_used():
    names = AdapterNames(["image=/adapters/image"])
    names.remove("image")

    assert MediaAdapters(["image"], names).of(features("image")) is None


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        ([], r"Default modality-specific LoRA\(s\) were provided for a non multimodal model\."),
        (["image", "video"], "default_mm_loras has an adapter for audio, which tiny does not read; it reads image, video"),
    ],
)
def test_the_model_must_read_the_modality(taken, text):
    with pytest.raises(FailedPrecondition, match=text):
        adapters("audio").check("tiny", taken)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("[]", "must be a JSON object such as"),
        ('{"smell": "/a"}', "has the modality 'smell'; there are image, audio, video"),
        ('{"image": ""}', "must have the path of an adapter for image, got ''"),
        ('{"image": 3}', "must have the path of an adapter for image, got 3"),
    ],
)
def test_other_settings_are_refused(value, text):
    with pytest.raises(ValidationError, match=text):
        FrontendSettings(default_mm_loras=value)


@pytest.mark.parametrize("fields", [{"lora_modules": "image=/b"}, {"served_model_names": "image"}])
def test_the_name_of_a_modality_is_that_of_its_adapter(fields):
    with pytest.raises(ValidationError, match="default-mm-loras names an adapter 'image', which is the name of another"):
        FrontendSettings(default_mm_loras=json.dumps({"image": "/a"}), **fields)
