"""A model without a chat template: conversations are refused with a remedy; completions and a template file work."""

import shlex
import subprocess

import httpx
import pytest

from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.tiny_model import save_tiny_model

MESSAGES = [{"role": "user", "content": "Hi"}]
CONVERSATIONS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def base_server(start_module_server, model):
    return start_module_server(model, "--device", "sim", *ONE_TOKENIZER)


@pytest.mark.parametrize("path", CONVERSATIONS)
def test_a_conversation_is_a_400_that_says_what_to_do(base_server, model, path):
    response = httpx.post(f"{base_server.url}{path}", json={"model": model, **CONVERSATIONS[path]})

    assert response.status_code == 400
    error = response.json()["error"]
    assert "no chat template" in error["message"]
    assert "/v1/completions" in error["message"]
    assert "--chat-template FILE" in error["message"]


def test_the_command_to_try_works(base_server):
    base_server.wait_for_log("curl .*")
    command = next(line for line in base_server.output().splitlines() if line.startswith("curl "))

    result = subprocess.run([*shlex.split(command), "--fail-with-body", "-sS"], capture_output=True, text=True, timeout=60)

    assert result.returncode == 0, result.stdout + result.stderr
    assert '"text_completion"' in result.stdout


def test_a_template_file_makes_conversations_possible(start_server, model, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")

    server = start_server(model, "--device", "sim", *ONE_TOKENIZER, "--chat-template", str(template)).wait_ready()

    body = {"model": model, "messages": MESSAGES, "max_tokens": 4}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200
    server.wait_for_log("curl .*/v1/chat/completions")
