"""Announcement: what `tetrad serve` prints when it takes work: its addresses, and a request that the model can answer.

Called once by `tetrad serve`. Knows URLs and the shape of two requests.
"""

import json
import shlex

import grpc

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.wire import tokenizer_info_of, tokenizer_info_request
from tetrad.services.channel import open_channel
from tetrad.stack_url import url_of
from tetrad.v1 import tokenizer_pb2_grpc

_TIMEOUT_S = 10.0


async def has_chat_template(tokenizer_target: str) -> bool:
    """Return whether a tokenizer can render conversations; True, the usual case, if it does not answer."""
    async with open_channel(tokenizer_target) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        try:
            answer = await stub.GetInfo(tokenizer_info_request(), timeout=_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError:
            return True
    return tokenizer_info_of(answer).has_chat_template


def announcement(frontend: FrontendSettings, *, can_chat: bool) -> str:
    """Return the lines.

    Args:
        frontend: its settings.
        can_chat: whether the model has a chat template; without one, the request to try is a completion.
    """
    url, name = url_of(frontend), frontend.served_model_names[0]
    host = url.partition("://")[2].rpartition(":")[0]
    grpc_address = "" if frontend.grpc_port is None else f", gRPC on {host}:{frontend.grpc_port}"
    console = f", console at {url}/" if frontend.console else ""
    if can_chat:
        path = "/v1/chat/completions"
        body = {"model": name, "messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0}
    else:
        path = "/v1/completions"
        body = {"model": name, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return (
        f"Tetrad serves {name} at {url}/v1{grpc_address}{console} (Ctrl-C stops it). Try:\n"
        f"curl {url}{path} -H 'Content-Type: application/json' -d {data}"
    )
