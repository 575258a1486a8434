"""The public gRPC API: InferenceService and ModelService over the same models as HTTP.

Errors are raised unchanged; the server's interceptor maps them to a status. The cancellation of a call closes its generator,
which aborts the request.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from functools import partial

import grpc

from tetrad.frontend.api.grpc.answers import Answers
from tetrad.frontend.api.grpc.call_limits import CallLimits, admit
from tetrad.frontend.api.grpc.chat_bodies import chat_body_of, json_of
from tetrad.frontend.api.grpc.media_parts import source_of
from tetrad.frontend.api.grpc.pooling import PoolingCalls
from tetrad.frontend.api.grpc.sampling_fields import sampling_fields_of, truncation_of
from tetrad.frontend.api.grpc.speech import SpeechCalls
from tetrad.frontend.api.grpc.traced_calls import traced_call
from tetrad.frontend.api.http.chat.conversations import conversation_of, echoed_text
from tetrad.frontend.api.http.sse.rendering import drop_logprobs, rendered
from tetrad.frontend.chat.turns import start_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.logprobs import num_candidates
from tetrad.frontend.request.prompts import PromptType, TextPrompt, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import REQUEST_ID
from tetrad.services.rpc.server import Register
from tetrad.v1 import inference_pb2, inference_pb2_grpc

_MAX_PAGE_TOKEN_CHARS = 20


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The methods Generate, Chat and Transcribe, and those of pooling models.

    Args:
        models: the served models.
        limits: the time limits of calls.
        pooling: answers Embed, Classify and Score.
        speech: answers Transcribe.
    """

    def __init__(self, models: ModelDirectory, limits: CallLimits, pooling: PoolingCalls, speech: SpeechCalls) -> None:
        self._models = models
        self._limits = limits
        self._pooling, self._speech = pooling, speech

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Stream the deltas of a completion."""
        admit(self._models, self._limits, context)
        with traced_call(self._models, request.request_id) as request_id:
            llm = self._models.find(request.model)
            llm.model_names.resolve(request.model)
            prompt = _prompt_of(request)
            add_special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            params = _params(llm, request)
            truncation = truncation_of(request)
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
            stream = await llm.add_request(
                request_id,
                prompt,
                params,
                priority=request.priority,
                add_special_tokens=add_special,
                cache_salt=request.cache_salt,
                lora_request=llm.model_names.lora_of(request.model),
                kv_transfer=_transfer_of(request),
                **truncation,
            )
            answers = Answers(request_id)
            # A call that is cancelled between two outputs must also end the request.
            with closing(stream):
                async for output in stream:
                    for each in output.outputs:
                        encode = partial(answers.completion, output, each)
                        yield await rendered(num_candidates(each.logprobs, output.prompt_logprobs), encode)
                    await drop_logprobs(output)

    async def Chat(
        self, request: inference_pb2.ChatRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.ChatResponse]:
        """Stream the deltas of the assistant's next turn."""
        admit(self._models, self._limits, context)
        with traced_call(self._models, request.request_id) as request_id:
            llm = self._models.find(request.model)
            llm.model_names.resolve(request.model)
            params = _params(llm, request)
            truncation = truncation_of(request)
            body = chat_body_of(request)
            conversation, echoed = conversation_of(body), echoed_text(body)
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
            turns = await start_turn(
                llm,
                conversation,
                params,
                request_id,
                priority=request.priority,
                cache_salt=request.cache_salt,
                model=request.model,
                kv_transfer=_transfer_of(request),
                **truncation,
            )
            answers = Answers(request_id)
            with closing(turns):
                async for update in turns:
                    output = update.output
                    for part in update.parts:
                        encode = partial(answers.turn, output, part, echoed=echoed, with_reasoning=body.include_reasoning)
                        yield await rendered(num_candidates(part.output.logprobs, output.prompt_logprobs), encode)
                    await drop_logprobs(output)

    async def Transcribe(
        self, request_iterator: AsyncIterator[inference_pb2.TranscribeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.TranscribeResponse]:
        """Stream the text of a recording."""
        admit(self._models, self._limits, context)
        options = await self._speech.options(request_iterator)
        with traced_call(self._models, options.request_id) as request_id:
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
            # A call that is cancelled between two outputs must also end the requests.
            async with aclosing(self._speech.answers(options, request_iterator, request_id)) as answers:
                async for answer in answers:
                    yield answer

    async def Embed(
        self,
        request: inference_pb2.EmbedRequest,
        context: grpc.aio.ServicerContext,
    ) -> inference_pb2.EmbedResponse:
        """Return an embedding of each input."""
        admit(self._models, self._limits, context)
        with traced_call(self._models, request.request_id) as request_id:
            return await self._pooling.embed(request, request_id)

    async def Classify(
        self,
        request: inference_pb2.ClassifyRequest,
        context: grpc.aio.ServicerContext,
    ) -> inference_pb2.ClassifyResponse:
        """Return the probability of each class for each input."""
        admit(self._models, self._limits, context)
        with traced_call(self._models, request.request_id) as request_id:
            return await self._pooling.classify(request, request_id)

    async def Score(
        self,
        request: inference_pb2.ScoreRequest,
        context: grpc.aio.ServicerContext,
    ) -> inference_pb2.ScoreResponse:
        """Return the scores of queries and documents."""
        admit(self._models, self._limits, context)
        with traced_call(self._models, request.request_id) as request_id:
            return await self._pooling.score(request, request_id)


class ModelServicer(inference_pb2_grpc.ModelServiceServicer):
    """The methods ListModels and GetModel.

    Args:
        models: the models to list.
    """

    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    async def ListModels(
        self,
        request: inference_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext,
    ) -> inference_pb2.ListModelsResponse:
        """List the served names and the adapters; the page token is the number of names on earlier pages."""
        names = [(llm, name) for llm in self._models.started() for name in llm.all_names]
        if request.page_token and not (request.page_token.isdecimal() and len(request.page_token) <= _MAX_PAGE_TOKEN_CHARS):
            raise InvalidRequest(f"page_token {request.page_token[:64]!r} is not one of ours.", field="page_token")
        start = int(request.page_token or 0)
        stop = start + (request.page_size or len(names))
        more = str(stop) if stop < len(names) else ""
        return inference_pb2.ListModelsResponse(
            models=[_card(llm, name) for llm, name in names[start:stop]], next_page_token=more
        )

    async def GetModel(
        self,
        request: inference_pb2.GetModelRequest,
        context: grpc.aio.ServicerContext,
    ) -> inference_pb2.GetModelResponse:
        """Return one model; NotFound for an unknown name."""
        llm = self._models.find(request.name)
        return inference_pb2.GetModelResponse(model=_card(llm, llm.model_names.resolve(request.name)))


def public_services(
    models: ModelDirectory, limits: CallLimits, *, max_pooling_inputs: int, max_upload_bytes: int
) -> dict[str, Register]:
    """Return the registrations of both servicers, by the full names of their services."""
    pooling, speech = PoolingCalls(models, max_pooling_inputs), SpeechCalls(models, max_upload_bytes)
    inference, lists = InferenceServicer(models, limits, pooling, speech), ModelServicer(models)
    return {
        "tetrad.v1.InferenceService": lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            inference, server
        ),
        "tetrad.v1.ModelService": lambda server: inference_pb2_grpc.add_ModelServiceServicer_to_server(lists, server),
    }


def _card(llm: AsyncLLM, name: str) -> inference_pb2.ModelCard:
    names = llm.model_names
    lora = names.lora_of(name)
    return inference_pb2.ModelCard(
        name=name,
        root=names.root if lora is None else lora.lora_path,
        parent="" if lora is None else names.names[0],
        max_model_len=llm.max_model_len,
        vocab_size=llm.tokenizer_info.vocab_size,
        created_unix_s=names.created_unix_s,
    )


def _params(llm: AsyncLLM, request: inference_pb2.GenerateRequest | inference_pb2.ChatRequest) -> SamplingParams:
    fields = {"max_tokens": None, **llm.default_sampling_fields(), **sampling_fields_of(request)}
    return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)


def _transfer_of(request: inference_pb2.GenerateRequest | inference_pb2.ChatRequest) -> KvTransfer | None:
    return KvTransfer.of(json_of("kv_transfer_params_json", request.kv_transfer_params_json))


def _prompt_of(request: inference_pb2.GenerateRequest) -> PromptType:
    media = [source_of(f"media[{place}]", part) for place, part in enumerate(request.media)]
    kwargs = json_of("mm_processor_kwargs_json", request.mm_processor_kwargs_json)
    io_kwargs = json_of("media_io_kwargs_json", request.media_io_kwargs_json)
    prompt: TextPrompt | TokensPrompt = TextPrompt(prompt=request.text)
    if request.WhichOneof("prompt") == "token_ids":
        prompt = TokensPrompt(prompt_token_ids=list(request.token_ids.ids))
    if media or kwargs or io_kwargs:
        modalities = dict.fromkeys(each.modality for each in media)
        prompt["multi_modal_data"] = {name: [each for each in media if each.modality == name] for name in modalities}
        prompt["mm_processor_kwargs"], prompt["media_io_kwargs"] = kwargs, io_kwargs
    return prompt
