"""Settings of images: vLLM's forms are read, and values without effect are refused by name."""

import pytest
from pydantic import ValidationError

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.settings import item_limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("{}", {}),
        ('{"image": 4}', {"image": 4}),
        ('{"image": {"count": 4}, "video": 0}', {"image": 4, "video": 0}),
    ],
)
def test_limits_per_prompt_have_the_forms_of_vllm(text, limits):
    assert item_limits(FrontendSettings(limit_mm_per_prompt=text).limit_mm_per_prompt) == limits


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"limit_mm_per_prompt": "4"}, "must be a JSON object"),
        ({"limit_mm_per_prompt": "image=4"}, "must be a JSON object"),
        ({"limit_mm_per_prompt": '{"picture": 4}'}, "has the modality 'picture'; there are image, audio, video"),
        ({"limit_mm_per_prompt": '{"image": -1}'}, "0 or more, for image, got -1"),
        ({"limit_mm_per_prompt": '{"image": true}'}, "0 or more, for image, got True"),
        ({"limit_mm_per_prompt": '{"image": {"count": 1, "width": 9}}'}, "sets 'width' of image, which has no effect"),
        ({"allowed_media_domains": ("https://a.example",)}, "must be host names without scheme, port or path"),
        ({"allowed_media_domains": ("*.a.example",)}, "must be host names without scheme, port or path"),
        ({"allowed_media_networks": ("10.0.0.1/8",)}, "has host bits set"),
        ({"max_media_redirects": 6}, "less than or equal to 5"),
    ],
)
def test_wrong_values_are_refused(fields, text):
    with pytest.raises(ValidationError, match=text):
        FrontendSettings(**fields)


def test_hosts_are_compared_without_case():
    assert FrontendSettings(allowed_media_domains="Images.Example,*").allowed_media_domains == ("images.example", "*")


def test_a_directory_of_local_media_must_exist(tmp_path):
    (tmp_path / "file").touch()

    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(ValidationError, match="must be a directory that exists"):
            FrontendSettings(allowed_local_media_path=path)
    assert FrontendSettings(allowed_local_media_path="").allowed_local_media_path is None
