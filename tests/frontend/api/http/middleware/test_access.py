"""Keys, operators, CORS and the limits of a request's head: access over HTTP and gRPC."""

import asyncio
import contextlib
import json
from pathlib import Path

import anthropic
import grpc
import openai
import pytest
from structlog.testing import capture_logs

from tetrad.frontend.access.guard import ApiKeys, Guard
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest, NotFound, PermissionDenied
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2, inference_pb2_grpc

COMPLETION = {"prompt": "hi", "max_tokens": 1}


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def test_a_key_is_needed_and_any_of_them_will_do(serve_frontend):
    async with serve_frontend(api_key=("one", "two")) as frontend:
        http = frontend.http
        good = [await http.post("/v1/completions", json=COMPLETION, headers=bearer(key)) for key in ("one", "two")]
        anthropics = await http.post("/v1/completions", json=COMPLETION, headers={"x-api-key": "two"})
        bad = [
            await http.post("/v1/completions", json=COMPLETION, headers=headers)
            for headers in ({}, bearer("three"), {"authorization": "Basic one"}, bearer("one,two"), bearer("on"))
        ]

    assert [response.status_code for response in (*good, anthropics)] == [200] * 3
    assert [response.status_code for response in bad] == [401] * 5
    assert all(response.headers["www-authenticate"] == "Bearer" and response.headers["x-request-id"] for response in bad)
    error = bad[1].json()["error"]
    assert error == {
        "message": "Incorrect API key provided.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert "didn't provide an API key" in bad[0].json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/ping", 200),
        ("/version", 200),
        ("/metrics", 200),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/v1/models", 401),
        ("/tokenize", 401),
        ("/load", 401),
        ("/server_info", 401),
        ("/nowhere", 401),
        ("/health/", 401),
    ],
)
async def test_only_what_probes_and_readers_need_is_open(serve_frontend, path, status):
    async with serve_frontend(api_key=("one",)) as frontend:
        assert (await frontend.http.get(path)).status_code == status


async def test_a_refused_request_is_not_read(serve_frontend, engine):
    async with serve_frontend(api_key=("one",)) as frontend:
        response = await frontend.http.post("/v1/completions", content=b"not even JSON")

    assert response.status_code == 401
    assert engine.requests == []


async def test_official_clients_send_keys_as_they_do(serve_frontend):
    async with serve_frontend(api_key=("secret",)) as frontend:
        url = f"http://127.0.0.1:{frontend.port}"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == ["fake"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with anthropic.AsyncAnthropic(base_url=url, api_key="secret", max_retries=0) as client:
            assert (await client.get("/v1/models", cast_to=object))["data"][0]["id"] == "fake"


async def test_the_key_file_is_read_again_when_it_changes(serve_frontend, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the team\nfirst\n\n")
    async with serve_frontend(api_key=("fixed",), api_key_file=file) as frontend:

        async def status(key):
            return (await frontend.http.get("/v1/models", headers=bearer(key))).status_code

        before = [await status(key) for key in ("fixed", "first", "second", "# of the team")]
        file.write_text("second key's line is next\n".replace(" ", "-") + "second\n")
        after = [await status(key) for key in ("fixed", "first", "second")]
        file.unlink()
        gone = [await status(key) for key in ("fixed", "second")]

    assert (before, after, gone) == ([200, 200, 401, 401], [200, 401, 200], [200, 200])


async def test_a_key_that_is_taken_away_ends_no_stream_and_begins_no_request(serve_frontend, engine, tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    async with serve_frontend(api_key_file=file) as frontend:
        engine.pause()
        body = {"prompt": "hi", "max_tokens": 3, "stream": True}
        async with frontend.http.stream("POST", "/v1/completions", json=body, headers=bearer("one")) as response:
            lines = response.aiter_lines()
            await engine.allow(1)
            await anext(lines)
            file.write_text("two\n")
            refused = await frontend.http.post("/v1/completions", json=COMPLETION, headers=bearer("one"))
            await engine.allow(2)
            rest = [line async for line in lines]

    assert refused.status_code == 401
    assert rest[-2] == "data: [DONE]"


def test_a_file_that_cannot_be_read_is_said_once_however_many_ask(tmp_path):
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeys((), file)

    with capture_logs() as logs:
        file.write_text("white space\n")
        accepted = [keys.accepts("only"), keys.accepts("white space"), keys.accepts("wrong")]
        file.unlink()
        accepted += [keys.accepts("only"), keys.accepts("wrong")]
        file.write_text("next\n")
        accepted += [keys.accepts("next"), keys.accepts("only")]

    assert accepted == [True, False, False, True, False, True, False]
    assert [line["event"] for line in logs] == ["api_keys.file_not_read"] * 2 + ["api_keys.read_again"]


def test_a_file_that_could_not_be_read_is_read_as_soon_as_it_can_be(tmp_path, monkeypatch):
    """A change of its owner or mode changes neither its size nor the time of its last change."""
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeys((), file)

    with capture_logs() as logs:
        file.write_text("another\n")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", _denied)
            accepted = [keys.accepts("only"), keys.accepts("another")]
        accepted += [keys.accepts("only"), keys.accepts("another")]

    assert accepted == [True, False, False, True]
    assert [line["event"] for line in logs] == ["api_keys.file_not_read", "api_keys.read_again"]


def _denied(*_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("presented", ["", "key ", "KEY", "key\0", "kéy", "\u212aey", "k", "keykey", "\udcff"])
def test_nothing_like_a_key_is_one(presented):
    assert not ApiKeys(["key"]).accepts(presented)


@pytest.mark.parametrize("key", ["", " ", "two words", "clé", "tab\t", "nul\0"])
def test_what_no_header_could_carry_safely_is_no_key_and_is_not_shown(key):
    with pytest.raises(InvalidRequest) as caught:
        ApiKeys([key])

    assert not key.strip() or key not in str(caught.value)


def test_a_file_that_became_empty_lets_nobody_in(tmp_path):
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeys((), file)
    assert keys.accepts("only")

    file.write_text("")

    assert keys.required
    assert not keys.accepts("only")
    assert not keys.accepts("")


def test_keys_that_cannot_be_used_are_an_error_at_start_that_does_not_show_them(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")

    with pytest.raises(NotFound, match="No such file"):
        ApiKeys((), tmp_path / "missing")
    with pytest.raises(InvalidRequest, match="has no keys"):
        ApiKeys((), empty)
    with pytest.raises(InvalidRequest, match="API key 2 of --api-key must be printable") as caught:
        ApiKeys(("fine", "se cret"))
    assert "se cret" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="API key 1 of --operator-api-key must be printable"):
        Guard(FrontendSettings(operator_api_key=("se cret",)))


async def test_grpc_needs_the_same_keys(serve_frontend):
    request = inference_pb2.GenerateRequest(text="hi")
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("one",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        models = inference_pb2_grpc.ModelServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer two"),), (("x-api-key", ""),)):
            with pytest.raises(grpc.aio.AioRpcError) as streamed:
                [response async for response in stub.Generate(request, metadata=metadata)]
            with pytest.raises(grpc.aio.AioRpcError) as unary:
                await models.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata)
            assert [each.value.code() for each in (streamed, unary)] == [grpc.StatusCode.UNAUTHENTICATED] * 2

        metadata = (("authorization", "bearer one"),)
        responses = [response async for response in stub.Generate(request, metadata=metadata)]

    assert responses


async def test_methods_that_a_caller_without_a_key_makes_up_are_no_labels_of_metrics(serve_frontend):
    """Else anyone could fill the memory with series."""
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("one",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        codes = []
        for method in ("/made.Up/Method", "/made.up", "/tetrad.v1.InferenceService/MadeUp"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(method)(b"")
            codes.append(refused.value.code())
        metrics = (await frontend.http.get("/metrics")).text.lower()

    assert codes == [grpc.StatusCode.UNIMPLEMENTED] * 3
    assert "made.up" not in metrics
    assert "madeup" not in metrics


async def test_refused_grpc_calls_are_counted_with_the_kind_of_their_method(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("one",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            [_ async for _ in inference_pb2_grpc.InferenceServiceStub(channel).Generate(inference_pb2.GenerateRequest())]
        metrics = (await frontend.http.get("/metrics")).text

    of_method = 'grpc_method="Generate",grpc_service="tetrad.v1.InferenceService"'
    lines = [line for line in metrics.splitlines() if of_method in line]
    assert lines
    assert all('grpc_type="server_stream"' in line for line in lines)


async def test_operators_of_an_open_local_server_need_no_key_but_web_pages_may_not(serve_frontend):
    async with serve_frontend() as frontend:
        plain = await frontend.http.post("/resume")
        page = await frontend.http.post("/resume", headers={"origin": "http://evil.example"})

    assert plain.status_code == 200
    assert (page.status_code, page.json()["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize(
    ("settings", "key", "status"),
    [
        ({"api_key": ("user",)}, "user", 403),
        ({"host": "0.0.0.0"}, "", 403),
        ({"operator_endpoints": "off"}, "", 403),
        ({"operator_endpoints": "off", "operator_api_key": ("boss",)}, "boss", 403),
        ({"operator_api_key": ("boss",)}, "", 401),
        ({"operator_api_key": ("boss",)}, "boss", 200),
        ({"api_key": ("user",), "operator_api_key": ("boss",)}, "user", 401),
        ({"api_key": ("user",), "operator_api_key": ("boss",)}, "boss", 200),
        ({"api_key": ("user",), "operator_endpoints": "on"}, "user", 200),
        ({"api_key": ("user",), "operator_endpoints": "on"}, "", 401),
        ({"host": "0.0.0.0", "operator_endpoints": "on"}, "", 200),
    ],
)
async def test_who_may_chat_may_not_operate(serve_frontend, settings, key, status):
    async with serve_frontend(**settings) as frontend:
        resets = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")
        for path in (
            "/pause",
            "/resume",
            "/sleep",
            "/release_kv_cache_memory",
            "/wake_up",
            *resets,
            "/start_profile",
            "/stop_profile",
        ):
            response = await frontend.http.post(path, headers=bearer(key) if key else {})
            assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("listen", "is_open"),
    [("", True), ("127.0.0.1:50050", True), ("[::1]:50050", True), ("unix:/tmp/g", True), ("0.0.0.0:50050", False)],
)
def test_a_server_whose_grpc_port_others_can_reach_has_no_open_operator_endpoints(listen, is_open):
    """Gateways' PauseGeneration and SubscribeKvEvents are on that port."""
    guard = Guard(FrontendSettings(listen=listen))

    with contextlib.nullcontext() if is_open else pytest.raises(PermissionDenied):
        guard.check_operator((), origin=None)


def test_operator_endpoints_are_open_on_a_unix_socket_whatever_the_host():
    Guard(FrontendSettings(host="0.0.0.0", uds="/run/http.sock")).check_operator((), origin=None)


async def test_an_operator_key_opens_everything(serve_frontend):
    async with serve_frontend(api_key=("user",), operator_api_key=("boss",)) as frontend:
        assert (await frontend.http.get("/v1/models", headers=bearer("boss"))).status_code == 200


async def test_pages_of_allowed_origins_may_call(serve_frontend):
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with serve_frontend(allowed_origins=("https://a.example",), api_key=("one",)) as frontend:
        http = frontend.http
        asked = await http.options("/v1/completions", headers={"origin": "https://a.example", **asking})
        refused = await http.options("/v1/completions", headers={"origin": "https://b.example", **asking})
        answered = await http.post("/v1/completions", json=COMPLETION, headers={"origin": "https://a.example", **bearer("one")})
        without_key = await http.post("/v1/completions", json=COMPLETION, headers={"origin": "https://a.example"})

    assert (asked.status_code, refused.status_code) == (200, 400)
    assert asked.headers["access-control-allow-origin"] == "https://a.example"
    assert answered.headers["access-control-allow-origin"] == "https://a.example"
    assert answered.headers["access-control-expose-headers"] == "x-request-id"
    # A page sees why it was refused.
    assert (without_key.status_code, without_key.headers["access-control-allow-origin"]) == (401, "https://a.example")


async def test_without_allowed_origins_there_is_no_cors(http):
    response = await http.get("/v1/models", headers={"origin": "https://a.example"})

    assert not any(name.startswith("access-control") for name in response.headers)


async def raw(port, data, *, more=b"", repeat=0):
    """Return the status line and the body of what a connection answers to bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        for _ in range(repeat):
            writer.write(more)
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), json.loads(body)


async def test_a_head_without_end_is_refused(serve_frontend):
    async with serve_frontend(max_header_bytes=8192) as frontend:
        endless = await raw(frontend.port, b"GET /health HTTP/1.1\r\nx: ", more=b"y" * 4096, repeat=3)
        long = await raw(frontend.port, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 9000 + b"\r\n\r\n")
        long_path = await raw(frontend.port, b"GET /" + b"y" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        fine = await frontend.http.get("/health", headers={"x": "y" * 7000})

    for status, body in (endless, long, long_path):
        assert status == "HTTP/1.1 431 Request Header Fields Too Large"
        assert "8192 bytes" in body["error"]["message"]
    assert fine.status_code == 200


async def test_what_is_no_http_gets_the_standard_error_object(frontend):
    status, body = await raw(frontend.port, b"\x16\x03\x01 hello\r\n\r\n")

    assert status == "HTTP/1.1 400 Bad Request"
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_keys_are_not_shown_with_the_settings(connect):
    llm = await connect(api_key=("very-secret",), operator_api_key=("more-secret",))

    assert "secret" not in repr(llm.settings)
