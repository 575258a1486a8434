"""Content other than text: refused with a reason, and its URL is neither opened nor fetched."""

import os

import pytest

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


@pytest.fixture
def readable(tmp_path):
    """Yield a file that shows when it is read: a pipe, at which a reader would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("scheme", ["file://", "", "http://127.0.0.1:9/"])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *(("/v1/chat/completions", kind) for kind in ("image_url", "input_audio", "file")),
        ("/v1/messages", "image"),
        ("/v1/responses", "input_image"),
    ],
)
async def test_content_that_names_a_file_or_a_page_is_refused(serve_frontend, readable, path, kind, scheme):
    content = [filled(PART[kind], f"{scheme}{readable}")]
    messages = [{"role": "user", "content": content}]
    body = {"input": messages} if path == "/v1/responses" else {"messages": messages, "max_tokens": 1}
    async with serve_frontend() as frontend:
        response = await frontend.http.post(path, json=body)

    assert response.status_code == 400, response.text
    assert kind in response.text
