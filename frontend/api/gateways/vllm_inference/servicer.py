"""vllm.Inference over the models of a frontend. Errors are raised unchanged; an interceptor maps them to a status."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from tetrad.frontend.api.gateways.common.calls import GatewayCalls, GatewayRequest
from tetrad.frontend.api.gateways.vllm_inference.answers import InferenceAnswers
from tetrad.frontend.api.gateways.vllm_inference.requests import request_of
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.vllm_api import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """The methods Generate and GenerateStream.

    Args:
        models: the served models.
        calls: runs the requests; vllm.Control aborts them.
    """

    def __init__(self, models: ModelDirectory, calls: GatewayCalls) -> None:
        self._models = models
        self._calls = calls

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.GenerateResponse:
        """Return a whole output."""
        llm, wanted, answers = self._read(request, context, is_stream=False)
        async with aclosing(self._calls.run(wanted, answers.of, llm)) as messages:
            return await anext(messages)

    async def GenerateStream(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Stream the deltas of the outputs."""
        llm, wanted, answers = self._read(request, context, is_stream=True)
        async with aclosing(self._calls.run(wanted, answers.of, llm)) as messages:
            async for message in messages:
                yield message

    def _read(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext, *, is_stream: bool
    ) -> tuple[AsyncLLM, GatewayRequest, InferenceAnswers]:
        self._calls.admit(context)
        llm = self._models.find(request.model)
        metadata = dict(context.invocation_metadata() or ())
        wanted = request_of(request, metadata, llm.default_sampling_fields(), llm.model_names, is_stream=is_stream)
        return llm, wanted, InferenceAnswers(request.response, llm.tokenizer_info.eos_token_ids)
