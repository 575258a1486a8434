"""kv_transfer_params over HTTP: a proxy sends the prompt to a producer, and its answer's object to a consumer, as vLLM's do."""

import json

import pytest

from tests.frontend.fakes import TEXT
from tests.frontend.fakes.engine import LEASE_ID
from tetrad.v1 import types_pb2

PROMPT = "a prompt of more than two blocks of tokens"
DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
PATHS = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/inference/v1/generate": {"token_ids": list(PROMPT.encode())},
}
PREFILL = {"do_remote_prefill": True, "remote_engine_id": "e", "lease_id": str(LEASE_ID), "remote_block_ids": [[3, 4]]}


def limited(path, **fields):
    """Return a body for `path` with one token."""
    is_tokens = path == "/inference/v1/generate"
    return PATHS[path] | ({"sampling_params": {"max_tokens": 1}} if is_tokens else {"max_tokens": 1}) | fields


@pytest.fixture
async def make_http(engine, serve_frontend):
    """`make_http(role)` gives a client of a frontend whose engine core has a role."""

    class Http:
        def __init__(self, role):
            engine.kv_role = types_pb2.KvRole.Value(f"KV_ROLE_{role.upper()}")
            self._serving = serve_frontend(listen="127.0.0.1:0")

        async def __aenter__(self):
            return (await self._serving.__aenter__()).http

        async def __aexit__(self, *errors):
            await self._serving.__aexit__(*errors)

    return Http


@pytest.mark.parametrize("path", PATHS)
async def test_a_producer_s_answer_says_where_the_blocks_are(engine, make_http, path):
    async with make_http("producer") as http:
        response = await http.post(path, json=limited(path, kv_transfer_params=DECODE | {"mark": "x"}))

    found = response.json()["kv_transfer_params"]
    [sent] = engine.requests
    assert sent.kv_transfer.do_remote_decode
    assert (found["do_remote_prefill"], found["do_remote_decode"], found["remote_engine_id"]) == (True, False, "engine-0")
    assert (found["remote_request_id"], found["remote_port"]) == (sent.request_id, 7100)
    assert found["remote_block_ids"] == [list(range(found["remote_num_tokens"] // 16))]
    assert (found["lease_id"], found["mark"]) == (str(LEASE_ID), "x")


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_has_it_in_the_chunk_that_ends(make_http, path):
    async with make_http("both") as http:
        body = limited(path, kv_transfer_params=DECODE, stream=True, stream_options={"include_usage": True})
        response = await http.post(path, json=body)

    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    having = [chunk for chunk in chunks if "kv_transfer_params" in chunk]
    assert [chunk["choices"][0]["finish_reason"] for chunk in having] == ["length"]
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_consumer_gets_the_object_unchanged(engine, make_http, path):
    async with make_http("consumer") as http:
        response = await http.post(path, json=limited(path, kv_transfer_params=PREFILL))

    [sent] = engine.requests
    assert response.status_code == 200
    assert "kv_transfer_params" not in response.json()
    assert (sent.kv_transfer.do_remote_prefill, sent.kv_transfer.remote_engine_id) == (True, "e")
    assert (sent.kv_transfer.lease_id, list(sent.kv_transfer.remote_block_ids)) == (LEASE_ID, [b"\3\0\0\0\4\0\0\0"])


async def test_all_n_outputs_read_the_blocks_and_one_keeps_them(engine, make_http):
    async with make_http("both") as http:
        await http.post("/v1/completions", json={"prompt": PROMPT, "n": 2, "kv_transfer_params": PREFILL})
        kept = await http.post("/v1/completions", json={"prompt": PROMPT, "n": 2, "kv_transfer_params": DECODE})

    reading, keeping = engine.requests[:2], engine.requests[2:]
    assert [each.kv_transfer.do_remote_prefill for each in reading] == [True, True]
    assert [each.kv_transfer.do_remote_decode for each in keeping] == [True, False]
    assert kept.json()["kv_transfer_params"]["remote_request_id"] == keeping[0].request_id


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("role", "params", "message"),
    [
        ("unspecified", DECODE, "kv_transfer_params.do_remote_decode needs an engine core with --kv-role producer or both"),
        ("unspecified", PREFILL, "kv_transfer_params.do_remote_prefill needs an engine core with --kv-role consumer or both"),
        ("unspecified", {"a": 1}, "kv_transfer_params needs an engine core with --kv-role producer, consumer or both"),
        ("producer", PREFILL, "--kv-role consumer or both"),
        ("consumer", DECODE, "--kv-role producer or both"),
        ("both", {"do_remote_decode": "yes"}, "kv_transfer_params.do_remote_decode must be true or false"),
    ],
)
async def test_what_no_engine_core_can_do_is_refused(engine, make_http, path, role, params, message):
    async with make_http(role) as http:
        response = await http.post(path, json=limited(path, kv_transfer_params=params))

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "kv_transfer_params")
    assert message in error["message"]
    assert not engine.requests


async def test_several_prompts_have_no_common_blocks(engine, make_http):
    async with make_http("both") as http:
        response = await http.post("/v1/completions", json={"prompt": ["a", "b"], "kv_transfer_params": DECODE})

    assert response.json()["error"]["message"] == "kv_transfer_params needs a single prompt, got 2."
    assert not engine.requests


async def test_an_ordinary_request_runs_on_an_engine_core_of_any_role(make_http):
    async with make_http("producer") as http:
        response = await http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 5})

    assert response.json()["choices"][0]["text"] == TEXT[:5]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_rendered_request_has_it_for_generate(make_http, path):
    async with make_http("both") as http:
        rendered = (await http.post(f"{path}/render", json=limited(path, kv_transfer_params=DECODE))).json()
        rendered = rendered[0] if isinstance(rendered, list) else rendered
        answer = await http.post("/inference/v1/generate", json=rendered)

    assert rendered["kv_transfer_params"] == DECODE
    assert answer.json()["kv_transfer_params"]["do_remote_prefill"] is True
