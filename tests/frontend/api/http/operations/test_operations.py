"""Endpoints for load balancers, dashboards and operators, and further parameters of completions."""

import asyncio

import pytest

from tests.frontend.fakes import EOS, TEXT
from tests.frontend.fakes.alphabet import BOS_NAME
from tetrad.services.version import VERSION
from tetrad.v1 import engine_core_pb2

COMPLETIONS = "/v1/completions"


async def test_load_counts_what_is_not_finished(http, engine):
    engine.pause()
    before = (await http.get("/load")).json()
    task = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": ["a", "b"], "max_tokens": 2}))
    await engine.until(lambda: len(engine.running) == 2)
    during = (await http.get("/load")).json()
    await engine.allow(None)
    await task

    assert (before, during, (await http.get("/load")).json()) == ({"server_load": 0}, {"server_load": 2}, {"server_load": 0})


async def test_ping_is_health_by_get_and_post(http, engine):
    assert [(await http.get("/ping")).status_code, (await http.post("/ping")).status_code] == [200, 200]


async def test_server_info_tells_what_is_served_and_no_secrets(serve_frontend):
    async with serve_frontend(api_key=("user-secret",), operator_api_key=("boss-secret",), max_n=7) as frontend:
        response = await frontend.http.get("/server_info", headers={"authorization": "Bearer user-secret"})

    info = response.json()
    assert (info["version"], info["served_model_names"], info["max_model_len"]) == (VERSION, ["fake"], 512)
    assert (info["engine"]["num_gpu_blocks"], info["limits"]["max_n"]) == (100, 7)
    assert [info["engine"][name] for name in ("weights_dtype", "dtype", "kv_cache_dtype")] == ["Q4_1", "float32", "int8"]
    assert info["engine"]["data_parallel_size"] == 1
    assert "secret" not in response.text


async def test_tokenizer_info(http):
    info = (await http.get("/tokenizer_info")).json()

    assert (info["vocab_size"], info["bos_token_id"], info["eos_token_ids"]) == (258, 256, [EOS])
    assert (info["bos_token"], info["eos_token"]) == (BOS_NAME, "")


async def test_pause_reaches_the_engine_and_resume_undoes_it(http, engine):
    answers = [
        await http.get("/is_paused"),
        await http.post("/pause"),
        await http.get("/is_paused"),
        await http.post("/pause?mode=wait&clear_cache=false"),
        await http.post("/resume"),
        await http.get("/is_paused"),
    ]

    assert [answer.json() for answer in answers] == [
        {"is_paused": False},
        {"status": "paused"},
        {"is_paused": True},
        {"status": "paused"},
        {"status": "resumed"},
        {"is_paused": False},
    ]
    abort, wait = engine_core_pb2.PAUSE_MODE_ABORT, engine_core_pb2.PAUSE_MODE_WAIT
    assert engine.orders == [("pause", abort, True), ("pause", wait, False), ("resume",)]


async def test_sleep_reaches_the_engine_and_parts_of_it_wake_up(http, engine):
    answers = [
        await http.get("/is_sleeping"),
        await http.post("/sleep"),
        await http.get("/is_sleeping"),
        await http.post("/wake_up?tags=weights"),
        await http.post("/wake_up?tags=kv_cache"),
        await http.post("/sleep?level=2&mode=abort"),
        await http.post("/wake_up"),
    ]

    assert [answer.json()["is_sleeping"] for answer in answers] == [False, True, True, True, False, True, False]
    keep, abort = engine_core_pb2.PAUSE_MODE_KEEP, engine_core_pb2.PAUSE_MODE_ABORT
    slept, woke = [("sleep", 1, keep), ("sleep", 2, abort)], [("wake_up", "weights"), ("wake_up", "kv_cache"), ("wake_up",)]
    assert engine.orders == [slept[0], woke[0], woke[1], slept[1], woke[2]]


async def test_the_kv_cache_is_released_alone(http, engine):
    answer = await http.post("/release_kv_cache_memory")

    assert answer.json() == {"status": "kv_cache_released"}
    assert engine.orders == [("sleep", 3, engine_core_pb2.PAUSE_MODE_KEEP)]


WRONG_QUERIES = {
    "/pause?mode=sleep": "mode",
    "/pause?clear_cache=perhaps": "clear_cache",
    "/sleep?level=3": "level",
    "/sleep?mode=gently": "mode",
    "/wake_up?tags=everything": "tags.0",
    "/pause?wait_for_inflight_requests=true": "wait_for_inflight_requests",
    "/reset_prefix_cache?reset_external=true": "reset_external",
    "/resume?mode=keep": "mode",
    "/stop_profile?prefix=x": "prefix",
    "/start_profile?max_iterations=-1": "max_iterations",
}


async def test_wrong_query_is_a_400_that_names_the_parameter(http, engine):
    for path, name in WRONG_QUERIES.items():
        response = await http.post(path)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name

    assert engine.orders == []


async def test_a_body_where_query_parameters_are_expected_is_refused(http, engine):
    """It would be ignored: this one would keep the weights in memory."""
    refused = await http.post("/sleep", json={"level": 2})
    slept = await http.post("/sleep?level=2", json={})

    assert refused.status_code == 400
    assert "/sleep takes query parameters and no body (it has level, mode, model)" in refused.json()["error"]["message"]
    assert slept.json() == {"is_sleeping": True}
    assert engine.orders == [("sleep", 2, engine_core_pb2.PAUSE_MODE_KEEP)]


async def test_a_model_that_is_not_served_is_not_found_also_beside_a_single_one(http, engine):
    answers = [
        await http.post("/sleep?model=other"),
        await http.post("/reset_prefix_cache?model=other"),
        await http.get("/is_paused?model=other"),
        await http.get("/server_info?model=other"),
        await http.get("/tokenizer_info?model=other"),
    ]

    assert [answer.status_code for answer in answers] == [404] * 5
    assert [answer.json()["error"]["code"] for answer in answers] == ["model_not_found"] * 5
    assert engine.orders == []


async def test_prefixes_are_not_forgotten_under_requests_unless_asked(http, engine):
    idle = await http.post("/reset_prefix_cache")
    engine.pause()
    task = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}))
    await engine.until(lambda: engine.running)
    busy = await http.post("/reset_prefix_cache")
    forced = await http.post("/reset_prefix_cache?reset_running_requests=true")
    await engine.allow(None)
    await task

    assert [response.json() for response in (idle, busy, forced)] == [{"success": True}, {"success": False}, {"success": True}]


async def test_media_caches_are_emptied_in_tokenizers_and_engine_cores(http, engine, tokenizer):
    answers = [await http.post("/reset_mm_cache"), await http.post("/reset_encoder_cache")]

    assert [answer.json() for answer in answers] == [{"success": True}] * 2
    assert (tokenizer.num_media_resets, engine.orders) == (1, [("reset_encoder_cache",)])


async def test_a_tokenizer_that_is_away_cannot_empty_its_cache(http, tokenizer):
    await tokenizer.kill()

    response = await http.post("/reset_mm_cache")

    assert response.status_code == 503, response.text


async def test_an_engine_that_is_away_is_a_503(frontend, engine):
    await engine.kill()

    response = await frontend.http.get("/is_paused")

    assert response.status_code == 503
    assert response.headers["retry-after"]


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
async def test_every_form_of_an_empty_prompt_is_refused(http, engine, prompt):
    response = await http.post(COMPLETIONS, json={"prompt": prompt})

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "The decoder prompt cannot be empty"
    assert response.json()["error"]["param"] == "prompt"
    assert not engine.running


async def test_echo_without_tokens_counts_none(http):
    body = {"prompt": ["ab", "c"], "max_tokens": 0, "echo": True}

    answer = (await http.post(COMPLETIONS, json=body)).json()

    assert [choice["text"] for choice in answer["choices"]] == ["ab", "c"]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 0)


async def test_best_of_returns_the_likeliest_outputs_and_counts_all(http, engine):
    # Outputs differ in how early they end: with -0.5 a token, all are equally likely per token, and order is kept.
    body = {"prompt": "hi", "n": 2, "best_of": 4, "max_tokens": 3}

    answer = (await http.post(COMPLETIONS, json=body)).json()

    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, TEXT[:3]), (1, TEXT[:3])]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 12
    assert len(engine.requests) == 4


async def test_n_at_temperature_0_gives_n_equal_outputs(http):
    body = {"prompt": "hi", "n": 3, "temperature": 0, "max_tokens": 4}

    answer = (await http.post(COMPLETIONS, json=body)).json()

    assert [choice["text"] for choice in answer["choices"]] == [TEXT[:4]] * 3


async def test_null_is_the_default_everywhere_openai_allows_it(http):
    fields = ("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed")
    fields += ("stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user")

    answer = await http.post(COMPLETIONS, json={"prompt": "hi", **dict.fromkeys(fields)})

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stop", ["quick", ["zzz", "quick"]])
async def test_stop_is_a_string_or_a_list(http, stop):
    answer = (await http.post(COMPLETIONS, json={"prompt": "hi", "stop": stop, "max_tokens": 30})).json()

    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("The ", "stop")


async def test_whole_numbers_may_be_written_with_a_point(http):
    answer = await http.post(COMPLETIONS, content=b'{"prompt": "hi", "max_tokens": 2.0, "n": 1.0}')

    assert answer.json()["usage"]["completion_tokens"] == 2
