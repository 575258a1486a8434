"""The settings of a stack: options that several frontends refuse."""

from dataclasses import replace

import pytest

from tetrad import EngineArgs
from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("count", "fields", "words"),
    [
        (0, {}, "api_server_count must be between 1 and 32, got 0"),
        (33, {}, "api_server_count must be between 1 and 32, got 33"),
        (2, {"responses_store": ":memory:"}, "responses_store :memory: is of one frontend alone"),
        (2, {"allow_runtime_lora_updating": True}, "allow_runtime_lora_updating needs api_server_count 1"),
    ],
)
def test_what_several_frontends_cannot_share_is_refused(smollm2, count, fields, words):
    settings = EngineArgs(model=str(smollm2), device="sim").stack_settings(**fields)

    with pytest.raises(InvalidRequest, match=words):
        replace(settings, api_server_count=count)


def test_adapters_of_media_need_lora_before_anything_starts(smollm2):
    with pytest.raises(InvalidRequest, match="default_mm_loras needs --enable-lora"):
        EngineArgs(model=str(smollm2), device="sim", default_mm_loras={"image": "/adapter"}).stack_settings()
