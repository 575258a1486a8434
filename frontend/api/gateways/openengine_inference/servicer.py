"""openengine.v1.Inference over the models of a frontend. Errors before a request is accepted are raised unchanged; the server's
interceptor maps them to a status. A later error is sent as the last event of the stream.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from tetrad.frontend.api.gateways.openengine_inference.answers import OpenEngineAnswers
from tetrad.frontend.api.gateways.openengine_inference.metadata import call_options
from tetrad.frontend.api.gateways.openengine_inference.models import model_of
from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
from tetrad.frontend.api.gateways.openengine_inference.requests import request_of
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.openengine_api import inference_pb2, inference_pb2_grpc
from tetrad.services.request_context import current_context


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Serves the method Generate.

    Args:
        models: the served models.
        requests: runs the requests and stores their ids, for Control to abort them.
    """

    def __init__(self, models: ModelDirectory, requests: OpenRequests) -> None:
        self._models = models
        self._requests = requests

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Stream the events of a request's outputs."""
        self._requests.admit(context)
        options = call_options(context.invocation_metadata() or ())
        llm = model_of(self._models, request.model)
        request_id = request.request_id or self._requests.new_id(current_context().request_id)
        wanted = request_of(request, options, llm.default_sampling_fields(), llm.model_names.adapters, request_id)
        answers = OpenEngineAnswers(wanted, request, llm.tokenizer_info.eos_token_ids)
        async with aclosing(self._requests.run(wanted, answers.of, llm, answers.failure)) as messages:
            async for message in messages:
                yield message
