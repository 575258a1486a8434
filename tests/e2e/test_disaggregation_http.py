"""Disaggregated prefill over HTTP: `tetrad serve --num-prefill-engines`, and the calls of an external proxy.

A request that X-Data-Parallel-Rank pins to the first engine core, with a salt of its own, gives the answer to expect.
"""

import json
import random
import shlex
import subprocess

import httpx
import pytest

from tests.documents import Page
from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.tiny_model import save_tiny_model

PAGE = Page.of("docs/disaggregation.md")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ALONE = {"X-Data-Parallel-Rank": "0"}
PRODUCER = {"do_remote_decode": True, "do_remote_prefill": False}
PARAMS = {"max_tokens": 24, "seed": 7, "temperature": 0.9, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(start_module_server, tmp_path_factory):
    directory = save_tiny_model(tmp_path_factory.mktemp("model"))
    (directory / "template.jinja").write_text(TEMPLATE)
    options = ("--device", "cpu", "--threads", "1", "--max-model-len", "512", "--kv-cache-memory-gib", "0.02")
    options += ("--chat-template", str(directory / "template.jinja"), *ONE_TOKENIZER)
    _, command, *flags = shlex.split(PAGE.block("tetrad serve"))
    assert command == "serve"
    return start_module_server(str(directory), *flags, *options)


def text_of_length(count):
    return "".join(random.Random(count).choices("abcdefghijklmnop ", k=count))


def post(server, path, body, **headers):
    response = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    return response


def test_a_chat_stream_is_that_of_one_engine_core(server):
    body = {"messages": [{"role": "user", "content": text_of_length(150)}], "stream": True, **PARAMS, "n": 2}
    before = server.metric("remote_prefills_total")

    def texts(body, **headers):
        found = {}
        for line in post(server, "/v1/chat/completions", body, **headers).text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    found[choice["index"]] = found.get(choice["index"], "") + (choice["delta"].get("content") or "")
        return found

    assert texts(body) == texts(body | {"cache_salt": "alone"}, **ALONE)
    assert server.metric("remote_prefills_total") == before + 1


def test_a_proxy_hands_the_prompt_s_blocks_from_one_call_to_the_next(server):
    body = {"prompt": text_of_length(120), **PARAMS}
    first = post(server, "/v1/completions", body | {"max_tokens": 1, "kv_transfer_params": PRODUCER}).json()

    handed = first["kv_transfer_params"]
    second = post(server, "/v1/completions", body | {"kv_transfer_params": handed}).json()

    assert (handed["do_remote_prefill"], handed["remote_num_tokens"]) == (True, 112)
    alone = post(server, "/v1/completions", body | {"cache_salt": "alone"}, **ALONE).json()
    assert second["choices"] == alone["choices"]
    # Of a request with blocks of another engine core, all of these are cached, as in vLLM.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 112


def test_the_page_s_proxy_of_two_calls_reads_the_blocks(server):
    text = PAGE.block("curl").replace("http://127.0.0.1:8000", server.url)

    ran = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, check=True, timeout=60)

    usage = json.loads(ran.stdout)["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (16, 80)


@pytest.mark.parametrize("wrong", [{"lease_id": "5"}, {"remote_host": "{}-gone"}, {"remote_engine_id": "other"}])
def test_blocks_that_are_not_there_are_computed(server, wrong):
    body = {"prompt": text_of_length(130), **PARAMS, "cache_salt": next(iter(wrong))}
    first = post(server, "/v1/completions", body | {"max_tokens": 1, "kv_transfer_params": PRODUCER}).json()

    handed = first["kv_transfer_params"]
    handed |= {key: text.format(handed[key]) for key, text in wrong.items()}
    second = post(server, "/v1/completions", body | {"kv_transfer_params": handed}).json()

    alone = post(server, "/v1/completions", body | {"cache_salt": "alone"}, **ALONE).json()
    assert second["choices"] == alone["choices"]


def test_an_address_that_no_operator_allows_is_refused(server):
    given = {"do_remote_prefill": True, "remote_host": "10.9.8.7", "remote_port": 80, "lease_id": "5", "remote_num_tokens": 16}

    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": text_of_length(40), "kv_transfer_params": given})

    assert response.status_code == 400
    assert "kv-peers allows unix:/" in response.json()["error"]["message"]
