"""/v1/completions/derender, /v1/chat/completions/derender: convert generated token ids to completions and chats."""

from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.chat.documentation import CHAT_EXAMPLE
from tetrad.frontend.api.http.chat.embeds import conversation_without_embeds
from tetrad.frontend.api.http.chat.objects import ChatCompletion
from tetrad.frontend.api.http.chat.router import ChatAnswer
from tetrad.frontend.api.http.completions.answer import CompletionAnswer
from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import either, struct_schema
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.api.http.requests.named import llm_of
from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.scale_out.derender_bodies import DerenderChatRequest, DerenderCompletionRequest, GivenAnswer
from tetrad.frontend.api.http.scale_out.derender_stream import DerenderedChatStream, DerenderedCompletionStream
from tetrad.frontend.api.http.scale_out.derender_stream_bodies import (
    DerenderChatBody,
    DerenderChatChunkRequest,
    DerenderCompletionBody,
    DerenderCompletionChunkRequest,
)
from tetrad.frontend.api.http.scale_out.derender_stream_objects import DerenderedChatChunk, DerenderedCompletionChunk
from tetrad.frontend.api.http.scale_out.given_answers import GivenOutputs, GivenTexts
from tetrad.frontend.api.http.scale_out.given_prompts import given_turn
from tetrad.frontend.api.http.schemas.objects import Completion, UsageCount
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.chat.turn_stream import TurnStream
from tetrad.frontend.chat.turns import callable_conversation
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.prompts import TokensPrompt

router = APIRouter()

_CHAT = either(answer=struct_schema(ChatCompletion), chunk=struct_schema(DerenderedChatChunk))
_COMPLETION = either(answer=struct_schema(Completion), chunk=struct_schema(DerenderedCompletionChunk))


@router.post(
    "/v1/chat/completions/derender",
    **documented(DerenderChatBody, answer=_CHAT, example=CHAT_EXAMPLE, tag="tokens"),
)
async def derender_chat_completion(request: Request) -> Response:
    """Convert an answer of /inference/v1/generate, or with `stream` a chunk of it, to one of /v1/chat/completions."""
    body = (await read_body(request, DerenderChatBody)).root
    llm = llm_of(request, body.model)
    if isinstance(body, DerenderChatChunkRequest):
        return await until_disconnected(request.receive, DerenderedChatStream(llm, body).answer())
    return await until_disconnected(request.receive, _DerenderedChat(llm, body).answer())


@router.post("/v1/completions/derender", **documented(DerenderCompletionBody, answer=_COMPLETION, tag="tokens"))
async def derender_completion(request: Request) -> Response:
    """Convert answers of /inference/v1/generate, one per prompt, or with `stream` a chunk, to one of /v1/completions."""
    body = (await read_body(request, DerenderCompletionBody)).root
    llm = llm_of(request, body.model)
    if isinstance(body, DerenderCompletionChunkRequest):
        return await until_disconnected(request.receive, DerenderedCompletionStream(llm, body).answer())
    return await until_disconnected(request.receive, _DerenderedCompletion(llm, body).answer())


class _DerenderedChat(ChatAnswer):
    """A chat answer made from an output that the client sends."""

    def __init__(self, llm: AsyncLLM, body: DerenderChatRequest) -> None:
        request = body.chat_request or RenderChatRequest(messages=[])
        request = request.model_copy(update={"model": body.model or request.model})
        super().__init__(llm, request, conversation_without_embeds(request), "", None)
        self._id = body.generate_response.request_id
        self._given = body
        self._usage = _GivenUsage([body.prompt_tokens])
        if body.chat_request is None:
            self._num_top = _num_top([body.generate_response])

    async def _start(self) -> TurnStream:
        llm, given = self._llm, self._given
        conversation = callable_conversation(self._conversation)
        ids = given.prompt_token_ids or given.generate_response.prompt_token_ids
        prompt, params = await given_turn(llm, conversation, self._params, ids, given.chat_request)
        outputs = params.structured_outputs
        waits = outputs is not None and outputs.start_after_token_ids is not None
        output = await GivenTexts(llm, params, "generate_response").output(given.generate_response, prompt)
        return TurnStream(GivenOutputs(output), llm.chat_formats, conversation, constraint_waits=waits)


class _DerenderedCompletion(CompletionAnswer):
    """A completion made from outputs that the client sends."""

    def __init__(self, llm: AsyncLLM, body: DerenderCompletionRequest) -> None:
        request = body.completion_request or RenderCompletionRequest(prompt="-")
        request = request.model_copy(update={"model": body.model or request.model})
        super().__init__(llm, request, "", (), None)
        self._id = body.generate_responses[0].request_id
        self._given = body
        self._usage = _GivenUsage(body.prompt_tokens or [None] * len(body.generate_responses))
        if body.completion_request is None:
            self._num_shown = max(choice.index + 1 for each in body.generate_responses for choice in each.choices)
            self._num_top = _num_top(body.generate_responses)

    async def _outputs(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        given = self._given
        texts = GivenTexts(self._llm, self._params, "generate_responses")
        prompts = given.prompt_token_ids or [None] * len(given.generate_responses)
        outputs = await all_of(
            texts.output(each, TokensPrompt(prompt_token_ids=ids or each.prompt_token_ids or []))
            for each, ids in zip(given.generate_responses, prompts, strict=True)
        )
        return _all_at_once(outputs)


class _GivenUsage(UsageCount):
    """Counts the tokens of prompts and outputs; the client may give the counts of the prompts.

    Args:
        num_prompt_tokens: the number of tokens of each prompt; None: the number of its ids.
    """

    def __init__(self, num_prompt_tokens: Sequence[int | None]) -> None:
        super().__init__()
        self._given = num_prompt_tokens

    def add(self, place: int, output: RequestOutput, *, num_tokens: int | None = None) -> None:
        """Count an output of the `place`-th prompt."""
        super().add(place, output, num_tokens=num_tokens)
        given = self._given[place]
        if given is not None:
            self._prompts[place] = (given, 0)


async def _all_at_once(outputs: Sequence[RequestOutput]) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
    yield list(enumerate(outputs))


def _num_top(answers: Sequence[GivenAnswer]) -> int:
    """Return the maximum number of candidates of a token in the answers."""
    contents = [choice.logprobs.content or () for each in answers for choice in each.choices if choice.logprobs is not None]
    return max((len(position.top_logprobs) for content in contents for position in content), default=0)
