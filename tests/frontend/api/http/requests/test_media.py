"""Content other than text: by default its URL is neither opened nor fetched, and it is refused with a reason."""

import os

import pytest

CHAT = "/v1/chat/completions"
PART = {
    "image_url": {"type": "image_url", "image_url": {"url": "{url}"}},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "{url}", "format": "wav"}},
    "file": {"type": "file", "file": {"file_id": "{url}"}},
    "image": {"type": "image", "source": {"type": "url", "url": "{url}"}},
    "input_image": {"type": "input_image", "image_url": "{url}"},
}


def filled(value, url):
    if isinstance(value, dict):
        return {name: filled(child, url) for name, child in value.items()}
    return url if value == "{url}" else value


def body_of(path, kind, url):
    messages = [{"role": "user", "content": [filled(PART[kind], url)]}]
    return {"input": messages} if path == "/v1/responses" else {"messages": messages, "max_tokens": 1}


@pytest.fixture
def readable(tmp_path):
    """Yield a file that shows when it is read: a pipe, at which a reader would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


REASONS = {
    "file://": "Cannot load local files without `--allowed-local-media-path`",
    "": "The URL must be either a HTTP, data or file URL.",
    "http://127.0.0.1:9/": "The URL must be from one of the allowed domains: []",
}


@pytest.mark.parametrize("scheme", ["file://", "", "http://127.0.0.1:9/"])
@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "image_url"), ("/v1/messages", "image"), ("/v1/responses", "input_image")]
)
async def test_an_image_that_names_a_file_or_a_page_is_refused(seeing, readable, path, kind, scheme):
    response = await seeing.http.post(path, json=body_of(path, kind, f"{scheme}{readable}"))

    assert response.status_code == 400, response.text
    assert REASONS[scheme] in response.text


@pytest.mark.parametrize("scheme", ["file://", "", "http://127.0.0.1:9/"])
@pytest.mark.parametrize(
    ("kind", "reason"), [("input_audio", "At most 0 audio(s) may be provided in one prompt."), ("file", "type: 'file'")]
)
async def test_other_content_is_refused_by_its_kind(seeing, readable, kind, reason, scheme):
    response = await seeing.http.post(CHAT, json=body_of(CHAT, kind, f"{scheme}{readable}"))

    assert response.status_code == 400, response.text
    assert reason in response.text
