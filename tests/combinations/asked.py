"""The requests of a walk, with their answers in a form that may be compared."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import httpx

from tests.combinations import grpc_bodies
from tests.combinations.compared import compared_body, merged_message, merged_response, merged_stream, without_names
from tetrad import BeamSearchParams, LoRARequest, SamplingParams
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import beam_search
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.services.errors import Overloaded, TetradError
from tetrad.v1 import inference_pb2_grpc


@dataclass(frozen=True)
class Client:
    """What takes requests: a frontend, its HTTP app and its gRPC API."""

    llm: AsyncLLM
    http: httpx.AsyncClient
    grpc: inference_pb2_grpc.InferenceServiceStub


class Asked(Protocol):
    """A request."""

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer, or the error. `kind`: how it is sent; the answer is the same."""


@dataclass(frozen=True)
class LibraryCall:
    """A call of AsyncLLM's add_request."""

    prompt: PromptType
    params: SamplingParams
    options: Mapping[str, Any]

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        params = self.params.clone()
        if kind is not None:
            params.output_kind = kind
        outputs: list[RequestOutput] = []
        try:
            stream = await client.llm.add_request(request_id, self.prompt, params, **self.options)
            async for output in stream:
                outputs.append(output)  # noqa: PERF401 - also before an error
        except TetradError as error:
            assert not (outputs and isinstance(error, Overloaded)), error
            return type(error).__name__, str(error).replace(request_id, "ID")
        return self.compared(self.merged(outputs, params.output_kind))

    @staticmethod
    def merged(outputs: list[RequestOutput], kind: RequestOutputKind) -> RequestOutput:
        """Return all outputs as one; the texts of cumulative ones only grow."""
        first, *others = outputs
        for other in others:
            if kind == RequestOutputKind.CUMULATIVE:
                known = {each.index: each for each in first.outputs}
                for each in other.outputs:
                    if each.index in known:
                        assert each.text.startswith(known[each.index].text), (known[each.index], each)
                        assert each.token_ids[: len(known[each.index].token_ids)] == known[each.index].token_ids
            first.add(other, aggregate=kind == RequestOutputKind.DELTA)
        return first

    @staticmethod
    def compared(output: RequestOutput) -> Any:
        """Return what an output has of its request."""
        choices = [
            {
                "index": each.index,
                "token_ids": list(each.token_ids),
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "logprobs": each.logprobs and [_positions(place) for place in each.logprobs],
                "cumulative_logprob": each.cumulative_logprob,
            }
            for each in sorted(output.outputs, key=lambda each: each.index)
        ]
        prompt = {"prompt": output.prompt, "prompt_token_ids": output.prompt_token_ids}
        prompt["prompt_logprobs"] = output.prompt_logprobs and [_positions(place) for place in output.prompt_logprobs]
        return {"outputs": choices, "finished": output.finished, **prompt}


@dataclass(frozen=True)
class BeamCall:
    """A beam search."""

    prompt: PromptType
    params: BeamSearchParams
    adapter: LoRARequest | None
    priority: int

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        options: Any = {"lora_request": self.adapter, "priority": self.priority}
        try:
            output = await beam_search(client.llm, request_id, self.prompt, self.params, **options)
        except TetradError as error:
            return type(error).__name__, str(error).replace(request_id, "ID")
        return [
            {"tokens": each.tokens, "text": each.text, "score": each.score, "finish_reason": each.finish_reason}
            for each in output.sequences
        ]


@dataclass(frozen=True)
class PoolingCall:
    """An embedding."""

    prompt: PromptType
    params: PoolingParams
    adapter: LoRARequest | None
    priority: int

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        options: Any = {"lora_requests": [self.adapter], "priority": self.priority}
        try:
            output = await client.llm.encode(self.prompt, self.params, request_id, **options)
        except TetradError as error:
            return type(error).__name__, str(error).replace(request_id, "ID")
        return output.outputs.to_list()


@dataclass(frozen=True)
class BodyCall:
    """A body for an HTTP route."""

    path: str
    body: Mapping[str, Any]
    is_stream: bool

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer; a `kind` allows streams, CUMULATIVE sends the same over gRPC."""
        if kind == RequestOutputKind.CUMULATIVE and grpc_bodies.takes(self.path, self.body):
            return await self._answer_over_grpc(client, request_id)
        body = dict(self.body) | {"request_id": request_id}
        if kind is None or not self.is_stream or {"best_of", "prompt_logprobs"} & body.keys():
            answer = await client.http.post(self.path, json=body)
            return compared_body(answer.json(), request_id)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with client.http.stream("POST", self.path, json=body) as answer:
            if answer.status_code != 200:
                return compared_body(json.loads(await answer.aread()), request_id)
            return compared_body(await merged_stream(answer.aiter_lines()), request_id)

    async def _answer_over_grpc(self, client: Client, request_id: str) -> Any:
        if self.path == grpc_bodies.COMPLETIONS:
            answers = client.grpc.Generate(grpc_bodies.generate_request(self.body, request_id))
        else:
            answers = client.grpc.Chat(grpc_bodies.chat_request(self.body, request_id))
        try:
            return compared_body(grpc_bodies.body_of([message async for message in answers]), request_id)
        except grpc.aio.AioRpcError as error:
            return str(error.details()).replace(request_id, "ID")


@dataclass(frozen=True)
class TurnCall:
    """A body for /v1/responses or /v1/messages, whose answers have parts of many kinds."""

    path: str
    body: Mapping[str, Any]

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer; with DELTA that of a stream."""
        if kind != RequestOutputKind.DELTA:
            return without_names((await client.http.post(self.path, json=self.body)).json())
        async with client.http.stream("POST", self.path, json=dict(self.body) | {"stream": True}) as answer:
            if answer.status_code != 200:
                return without_names(json.loads(await answer.aread()))
            events = [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: {")]
        return without_names(merged_message(events) if self.path == "/v1/messages" else merged_response(events))


def _positions(place: Any) -> Any:
    return place and {token_id: (each.logprob, each.decoded_token) for token_id, each in place.items()}
