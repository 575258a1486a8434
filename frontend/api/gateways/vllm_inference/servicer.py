"""vllm.Inference over AsyncLLM. Errors are raised unchanged; the server's interceptor maps them to a status."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from tetrad.frontend.api.gateways.common.calls import GatewayCalls, GatewayRequest
from tetrad.frontend.api.gateways.vllm_inference.answers import InferenceAnswers
from tetrad.frontend.api.gateways.vllm_inference.requests import request_of
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.vllm_api import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Generate and GenerateStream.

    Args:
        llm: what generates.
        calls: what runs the requests; Control aborts them.
    """

    def __init__(self, llm: AsyncLLM, calls: GatewayCalls) -> None:
        self._llm = llm
        self._calls = calls

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.GenerateResponse:
        """Return a whole output."""
        wanted, answers = self._read(request, context, is_stream=False)
        async with aclosing(self._calls.run(wanted, answers.of)) as messages:
            return await anext(messages)

    async def GenerateStream(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Stream the deltas of the outputs."""
        wanted, answers = self._read(request, context, is_stream=True)
        async with aclosing(self._calls.run(wanted, answers.of)) as messages:
            async for message in messages:
                yield message

    def _read(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext, *, is_stream: bool
    ) -> tuple[GatewayRequest, InferenceAnswers]:
        self._calls.admit(context)
        self._llm.model_names.resolve(request.model)
        metadata = dict(context.invocation_metadata() or ())
        defaults, adapters = self._llm.default_sampling_fields(), self._llm.model_names.adapters
        wanted = request_of(request, metadata, defaults, adapters, is_stream=is_stream)
        return wanted, InferenceAnswers(request.response, self._llm.tokenizer_info.eos_token_ids)
