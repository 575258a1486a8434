"""The answers of Tetrad's own gRPC API, the reference for gateways."""

import grpc

from tests.e2e.conftest import Server
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2


def chat_text(server: Server, question: str, max_tokens: int) -> str:
    """Return the greedy answer to a question."""
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role="user", content=question)],
        sampling_params=types_pb2.SamplingParams(temperature=0, max_tokens=max_tokens),
    )
    with grpc.insecure_channel(server.grpc_target) as channel:
        return "".join(each.content for each in inference_pb2_grpc.InferenceServiceStub(channel).Chat(request))


def completion_text(server: Server, prompt: str | list[int], max_tokens: int) -> str:
    """Return the greedy continuation of a text or of ids."""
    request = inference_pb2.GenerateRequest(sampling_params=types_pb2.SamplingParams(temperature=0, max_tokens=max_tokens))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    with grpc.insecure_channel(server.grpc_target) as channel:
        return "".join(each.text for each in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request))
