"""A client that sends chats to one frontend over gRPC and over HTTP, and its tools."""

import json

import grpc
import pytest

from tests.frontend.turns import WEATHER
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc

TOOLS = [
    pb.Tool(name="get_weather", description="Weather of a city.", parameters_json=json.dumps(WEATHER)),
    pb.Tool(name="get_time"),
]
HTTP_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
USER = pb.ChatMessage(role="user", content="hi")
FINISH = {pb.CHAT_FINISH_REASON_STOP: "stop", pb.CHAT_FINISH_REASON_TOOL_CALLS: "tool_calls"}


class Client:
    """Sends requests to one frontend over both APIs."""

    def __init__(self, frontend, channel):
        self.http = frontend.http
        self.stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def deltas(self, **fields):
        request = pb.ChatRequest(**{"messages": [USER]} | fields)
        return [response async for response in self.stub.Chat(request)]

    async def ask(self, **fields):
        return added_up(await self.deltas(**fields))

    async def refusal(self, **fields):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.deltas(**fields)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        found = from_rpc_error(caught.value)
        return found.message, found.field

    async def ask_http(self, **fields):
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return (await self.http.post("/v1/chat/completions", json=body)).json()


def added_up(responses, index=0):
    """Return what the messages of a turn add up to, as HTTP would show it."""
    reasoning, content, calls, reasons = "", "", [], []
    for response in responses:
        if response.index != index:
            continue
        reasoning += response.reasoning
        content += response.content
        for delta in response.tool_calls:
            if delta.id:
                assert delta.index == len(calls)
                calls.append(pb.ToolCall(id=delta.id, name=delta.name))
            else:
                assert not delta.name
            calls[delta.index].arguments_json += delta.arguments_json
        reasons += [response.finish_reason] if response.finish_reason else []
    assert len(reasons) == 1
    return reasoning, content, calls, FINISH[reasons[0]]
