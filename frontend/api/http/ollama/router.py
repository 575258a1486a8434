"""/api/generate, /api/chat, /api/embed and /api/embeddings: Ollama's API, on the same turns as all chat endpoints."""

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.routes import stream_of_lines as lines
from tetrad.frontend.api.http.ollama import documentation as docs
from tetrad.frontend.api.http.ollama.bodies import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, GeneratingBody
from tetrad.frontend.api.http.ollama.conversations import chat_conversation, images_of, prompt_conversation
from tetrad.frontend.api.http.ollama.errors import ollama_error
from tetrad.frontend.api.http.ollama.models import named_model
from tetrad.frontend.api.http.ollama.objects import Chatted, Embedded, Generated, OneEmbedding
from tetrad.frontend.api.http.ollama.route import OllamaRoute
from tetrad.frontend.api.http.ollama.sampling import check_context, sampling_params_of
from tetrad.frontend.api.http.ollama.turns import News, OllamaTurn, Writer, line_of, loaded, write_chatted, write_generated
from tetrad.frontend.api.http.pooling.batch import in_slices
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import request_id_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import StreamForm, stream_response, until_disconnected
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turn_stream import TurnStream
from tetrad.frontend.chat.turns import start_turn
from tetrad.frontend.media.items import IMAGE
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.pooling import EMBED, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType, TextPrompt
from tetrad.services.errors import InvalidRequest

router = APIRouter(route_class=OllamaRoute)

_GENERATE = documented(
    GenerateRequest, answer=Generated, example=docs.GENERATED, lines=lines(Generated, docs.ERROR), error_form=docs.ERRORS
)
_CHAT = documented(ChatRequest, answer=Chatted, example=docs.CHATTED, lines=lines(Chatted, docs.ERROR), error_form=docs.ERRORS)
_EMBED = documented(EmbedRequest, answer=Embedded, example=docs.EMBEDDED, tag="pool", error_form=docs.ERRORS)
_EMBEDDINGS = documented(EmbeddingsRequest, answer=OneEmbedding, example=docs.ONE_EMBEDDING, tag="pool", error_form=docs.ERRORS)


@router.post("/api/generate", **_GENERATE)
async def generate(request: Request) -> Response:
    """Answer a prompt, in Ollama's form."""
    body = await read_prompt_body(request, GenerateRequest, any_content_type=True)
    llm, model = named_model(request, body.model)
    request_id = f"ollama-{request_id_of(request, None)}"
    if not body.prompt and not body.images:
        return await _respond_loaded(request, body, write_generated, model)
    params = sampling_params_of(llm, body)
    raw = body.raw or not llm.tokenizer_info.has_chat_template
    if raw and body.system and not body.raw:
        raise InvalidRequest("system is not supported: this model has no chat template.", field="system")
    conversation = None if raw else prompt_conversation(llm, body)

    async def start() -> TurnStream:
        if conversation is not None:
            return await start_turn(llm, conversation, params, request_id, model=model)
        prompt: PromptType = body.prompt or ""
        if images := images_of("images", body.images):
            prompt = TextPrompt(prompt=body.prompt or "", multi_modal_data={IMAGE: images})
        stream = await llm.add_request(request_id, prompt, params, lora_request=llm.model_names.lora_of(model))
        return TurnStream(stream, ChatFormats(), Conversation([]))

    num_top = (body.top_logprobs or 0) if body.logprobs else None
    return await _respond(request, body, OllamaTurn(start, write_generated, model, num_top=num_top), write_generated, model)


@router.post("/api/chat", **_CHAT)
async def chat(request: Request) -> Response:
    """Answer a conversation, in Ollama's form."""
    body = await read_prompt_body(request, ChatRequest, any_content_type=True)
    llm, model = named_model(request, body.model)
    request_id = f"ollama-{request_id_of(request, None)}"
    if not body.messages:
        return await _respond_loaded(request, body, write_chatted, model)
    params, conversation = sampling_params_of(llm, body), chat_conversation(llm, body)

    async def start() -> TurnStream:
        return await start_turn(llm, conversation, params, request_id, model=model)

    num_top = (body.top_logprobs or 0) if body.logprobs else None
    return await _respond(request, body, OllamaTurn(start, write_chatted, model, num_top=num_top), write_chatted, model)


@router.post("/api/embed", **_EMBED)
async def embed(request: Request) -> Response:
    """Return an embedding of each input, in Ollama's form."""
    started_ns = time.monotonic_ns()
    body = await read_prompt_body(request, EmbedRequest, any_content_type=True)
    texts = [body.input] if isinstance(body.input, str) else body.input
    keep = None if body.truncate is False else -1
    outputs = await _embeddings(request, body, texts, keep=keep, dimensions=body.dimensions)
    embeddings = await in_slices(outputs, lambda _, output: output.outputs.values.tolist())
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    _, model = named_model(request, body.model)
    return JsonResponse(Embedded(model, embeddings, time.monotonic_ns() - started_ns, 0, num_tokens))


@router.post("/api/embeddings", **_EMBEDDINGS)
async def embed_one(request: Request) -> Response:
    """Return an embedding of a prompt: the older form of /api/embed."""
    body = await read_prompt_body(request, EmbeddingsRequest, any_content_type=True)
    [output] = await _embeddings(request, body, [body.prompt], keep=-1, dimensions=None)
    return JsonResponse(OneEmbedding(output.outputs.values.tolist()))


async def _embeddings(
    request: Request, body: EmbedRequest | EmbeddingsRequest, texts: list[str], *, keep: int | None, dimensions: int | None
) -> list[PoolingRequestOutput]:
    llm, model = named_model(request, body.model)
    llm.required_pooling(EMBED, "Embeddings API")
    check_context(llm, body.options)
    most = request.app.state.settings.max_pooling_inputs
    if not texts:
        raise InvalidRequest("input needs at least one text.", field="input")
    if len(texts) > most:
        raise InvalidRequest(f"input may hold at most {most} texts, got {len(texts)}.", field="input")
    params = [PoolingParams(task=EMBED, dimensions=dimensions)] * len(texts)
    request_id = f"ollama-{request_id_of(request, None)}"
    adapters = [llm.model_names.lora_of(model)] * len(texts)
    work = llm.encode_all(
        texts, params, request_id, lora_requests=adapters, truncate_prompt_tokens=keep, truncation_side="right"
    )
    return await until_disconnected(request.receive, work)


async def _respond(request: Request, body: GeneratingBody, turn: OllamaTurn, write: Writer, model: str) -> Response:
    if body.streams:
        return stream_response(request, turn.stream(), _form(write, model))
    return await until_disconnected(request.receive, turn.answer())


async def _respond_loaded(request: Request, body: GeneratingBody, write: Writer, model: str) -> Response:
    answer = loaded(write(model, News()))
    if not body.streams:
        return JsonResponse(answer)

    async def one() -> AsyncIterator[bytes]:
        yield line_of(answer)

    return stream_response(request, one(), _form(write, model))


def _form(write: Writer, model: str) -> StreamForm:
    # Clients read each line as a part of the answer: the keep-alive line is a part without new text.
    return StreamForm(
        closing=b"",
        keep_alive=line_of(write(model, News())),
        failure=lambda error: line_of(ollama_error(error)),
        media_type="application/x-ndjson",
    )
