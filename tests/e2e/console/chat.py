"""Steps of playground tests: send a message, change settings, and replace the model's answer by a fixed one."""

import json

from playwright.sync_api import Page

QUESTION = "Name the capital of France."
ANSWERED = ".message.assistant[data-state=done]"


def ask(page: Page, text: str = QUESTION) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")


def mock_answer(page: Page, text: str, logprobs: object = None) -> None:
    """Let the next answers be this text."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop", "logprobs": logprobs}
    chunk = {"id": "chatcmpl-1", "choices": [choice], "usage": {"completion_tokens": 1}}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


def show_tokens(page: Page) -> None:
    page.get_by_role("button", name="Tokens").click()


def setting(page: Page, **values: object) -> None:
    for name, value in values.items():
        page.fill(f"#sampling [name={name}]", str(value))
