"""Bad input gets the same error through HTTP, gRPC and Python, and disturbs no other request."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.bad_input_row import ALL, CHAT, GRPC, HTTP, PYTHON, Row
from tests.e2e.bad_input_table import ROWS, USER
from tetrad import LLM, SamplingParams
from tetrad.frontend.request.sampling_params import RepetitionDetection
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import Code, InternalError, TetradError
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

_HTTP_STATUS_OF = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
}
_TEXT_OPTIONS = ("stop", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "detokenize")
_TEXT_OPTIONS += ("bad_words", "stream_interval", "allowed_token_ids")
_MODES = {
    "none": inference_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": inference_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": inference_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
Answer = tuple[int, str, str | None]
"""Status as of HTTP, message, field."""


class HttpApi:
    """Sends rows over HTTP."""

    def __init__(self, server) -> None:
        self._client = httpx.Client(base_url=server.url, timeout=30)

    def send(self, row) -> Answer:
        fields = dict(row.params)
        content = json.dumps(self._body(row, fields)).encode() if row.content is None else row.content
        headers = {"content-type": "application/json", **row.headers}
        path = CHAT if row.messages is not None else row.path
        response = self._client.post(path, content=content, headers=headers)
        assert response.headers["x-request-id"]
        if response.status_code == 200:
            return 200, "", None
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return response.status_code, error["message"], error["param"]

    def _body(self, row, params) -> dict[str, Any]:
        body: dict[str, Any] = {"model": row.model} if row.model else {}
        if row.messages is not None:
            body |= {"messages": row.messages, **row.options}
        elif row.path == CHAT:
            body["messages"] = [USER]
        else:
            body["prompt"] = row.prompt
        return {"max_tokens": 4, **body, **params, **row.fields}

    def close(self) -> None:
        self._client.close()


class GrpcApi:
    """Sends rows over the public gRPC API."""

    def __init__(self, server) -> None:
        self._channel = grpc.insecure_channel(server.grpc_target, options=[("grpc.max_send_message_length", 32 << 20)])
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def send(self, row) -> Answer:
        method, request = self._request(row)
        try:
            list(method(request, timeout=30))
        except grpc.RpcError as error:
            found = from_rpc_error(error)
            return _HTTP_STATUS_OF[found.code], found.message, found.field
        return 200, "", None

    def _request(self, row):
        params = {"max_tokens": 4, **row.params}
        text = {name: params.pop(name) for name in _TEXT_OPTIONS if name in params}
        if "allowed_token_ids" in text:
            text["allowed_token_ids"] = {"ids": text["allowed_token_ids"]}
        common = {"n": params.pop("n", None), "model": row.model or "", **row.fields}
        if "structured_outputs" in params:
            params["structured_outputs"] = _structured_message(params["structured_outputs"])
        common["sampling_params"] = types_pb2.SamplingParams(**params)
        common["text_options"] = inference_pb2.TextOptions(**text)
        if row.messages is not None:
            messages = [_chat_message(message) for message in row.messages]
            return self._stub.Chat, inference_pb2.ChatRequest(messages=messages, **_chat_options(row.options), **common)
        prompt = {"text": row.prompt} if isinstance(row.prompt, str) else {"token_ids": {"ids": row.prompt}}
        return self._stub.Generate, inference_pb2.GenerateRequest(**prompt, **common)

    def close(self) -> None:
        self._channel.close()


class PythonApi:
    """Gives rows to the LLM class."""

    def __init__(self, server) -> None:
        self._llm = LLM(target=server.stack_directory())

    def send(self, row) -> Answer:
        try:
            params = SamplingParams(**{"max_tokens": 4, **_python_params(row.params)})
            if row.messages is not None:
                self._llm.chat(row.messages, params, use_tqdm=False, **row.options)
            else:
                prompt = row.prompt if isinstance(row.prompt, str) else {"prompt_token_ids": row.prompt}
                self._llm.generate(prompt, params, use_tqdm=False)
        except TetradError as error:
            assert not isinstance(error, InternalError)
            return _HTTP_STATUS_OF[error.code], error.message, error.field
        return 200, "", None

    def close(self) -> None:
        self._llm.close()


def _structured_message(constraint: dict[str, Any]) -> types_pb2.StructuredOutputs:
    fields = {{"json": "json_schema"}.get(name, name): value for name, value in constraint.items()}
    if "choice" in fields:
        fields["choice"] = {"choices": fields["choice"]}
    return types_pb2.StructuredOutputs(**fields)


def _chat_message(message: dict[str, Any]) -> inference_pb2.ChatMessage:
    fields = dict(message)
    if isinstance(fields.get("content"), list):
        fields["content_parts"] = [{name: part[name] for name in ("text",) if name in part} for part in fields.pop("content")]
    calls = [(call.get("id"), call["function"]) for call in fields.pop("tool_calls", [])]
    made = [{"id": name, "name": each.get("name"), "arguments_json": each.get("arguments")} for name, each in calls]
    return inference_pb2.ChatMessage(**fields, tool_calls=made)


def _chat_options(options: dict[str, Any]) -> dict[str, Any]:
    fields = dict(options)
    for name in ("documents", "chat_template_kwargs"):
        if name in fields:
            fields[f"{name}_json"] = json.dumps(fields.pop(name))
    functions = [dict(tool["function"]) for tool in fields.pop("tools", [])]
    for function in functions:
        function["parameters_json"] = json.dumps(function.pop("parameters")) if "parameters" in function else ""
    if "tool_choice" in fields:
        fields["tool_choice"] = _tool_choice(fields["tool_choice"])
    return fields | {"tools": functions}


def _tool_choice(choice: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"mode": _MODES[choice]}
    if choice["type"] == "function":
        return {"function": choice["function"]["name"]}
    allowed = choice["allowed_tools"]
    names = [tool["function"]["name"] for tool in allowed["tools"]]
    return {"mode": _MODES[allowed["mode"]], "allowed_functions": names}


def _python_params(params: dict[str, Any]) -> dict[str, Any]:
    made = dict(params)
    if "structured_outputs" in made:
        made["structured_outputs"] = StructuredOutputsParams(**made["structured_outputs"])
    if "repetition_detection" in made:
        made["repetition_detection"] = RepetitionDetection(**made["repetition_detection"])
    return made


@pytest.fixture(scope="module")
def apis(sim_server) -> Iterator[dict[str, Any]]:
    opened = {HTTP: HttpApi(sim_server), GRPC: GrpcApi(sim_server), PYTHON: PythonApi(sim_server)}
    yield opened
    for api in opened.values():
        api.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(sim_server):
    yield
    sim_server.wait_idle(5)


def test_the_table_is_large_and_its_names_are_unique():
    names = [row.name for row in ROWS]

    assert len(names) >= 80
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert all(sum(api in row.apis for row in ROWS) >= 50 for api in ALL)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_input_has_one_reason_everywhere_and_the_next_request_is_answered(apis, row):
    answers = {}
    for name in row.apis:
        answers[name] = apis[name].send(row)
        assert apis[name].send(Row("good", "")) == (200, "", None)

    for status, message, param in answers.values():
        assert row.reason in message
        assert (status, param) == (row.status, row.param)
    assert len({_without_model(message) for _, message, _ in answers.values()}) == 1, answers


def _without_model(message):
    """Return an error without the model's name, which is a file for the library and the served name for others."""
    return re.sub(r"\S*smollm2-135m-instruct\S*", "MODEL", message, flags=re.IGNORECASE)


def test_a_nul_is_a_character_like_any_other(apis):
    row = Row("nul", "", prompt="before\x00after")

    assert [api.send(row)[0] for api in apis.values()] == [200] * 3


def test_a_lone_surrogate_is_refused_where_it_can_be_said(apis):
    row = Row("surrogate", "", prompt="lone \ud800 surrogate")

    answers = [apis[name].send(row) for name in (HTTP, PYTHON)]

    assert [status for status, _, _ in answers] == [400, 400]
    assert all("lone surrogate" in message for _, message, _ in answers)


def test_ten_megabytes_of_prompt_are_refused_quickly(apis):
    row = next(row for row in ROWS if row.name == "prompt:ten million characters")
    start = time.monotonic()

    apis[HTTP].send(row)

    assert time.monotonic() - start < 10


def test_the_public_grpc_api_generates(sim_server):
    params = types_pb2.SamplingParams(max_tokens=5, ignore_eos=True)
    request = inference_pb2.GenerateRequest(text="Hello", sampling_params=params)
    with grpc.insecure_channel(sim_server.grpc_target) as channel:
        responses = list(inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=30))

    assert sum(len(response.token_ids) for response in responses) == 5
    assert responses[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert "".join(response.text for response in responses)
