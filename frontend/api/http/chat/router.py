"""/v1/chat/completions: answers one conversation with n choices, streamed or whole."""

import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.chat.bodies import ChatCompletionRequest
from tetrad.frontend.api.http.chat.conversations import chat_params, conversation_of, echoed_text
from tetrad.frontend.api.http.chat.documentation import CHAT_EXAMPLE
from tetrad.frontend.api.http.chat.embeds import with_decoded_embeds
from tetrad.frontend.api.http.chat.objects import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    Delta,
    delta_of,
    message_of,
)
from tetrad.frontend.api.http.documentation.routes import documented, stream_of_chunks
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import data_parallel_rank_of, llm_of, request_id_of
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import chat_logprobs
from tetrad.frontend.api.http.schemas.objects import ChatLogprobs, UsageCount, event, kv_transfer_params_of
from tetrad.frontend.api.http.sse.rendering import json_event, json_response, rendered, rendered_prompt_logprobs
from tetrad.frontend.api.http.sse.streams import stream_response, until_disconnected
from tetrad.frontend.chat.conversation import Conversation, NamedTool
from tetrad.frontend.chat.turn_stream import TurnPart, TurnStream, TurnUpdate
from tetrad.frontend.chat.turns import start_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.parsing.elements.pieces import AssistantTurn, Piece, Reasoning
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.logprobs import drop_candidates
from tetrad.frontend.request.outputs import CompletionOutput
from tetrad.services.timers.time_slice import TimeSlice

router = APIRouter()

_ROLE = "assistant"
_DOCS = documented(ChatCompletionRequest, answer=ChatCompletion, example=CHAT_EXAMPLE, events=stream_of_chunks(ChatChunk))


@router.post("/v1/chat/completions", **_DOCS)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    body = await read_prompt_body(request, ChatCompletionRequest)
    llm, rank = llm_of(request, body.model), data_parallel_rank_of(request)
    takes_embeds = request.app.state.settings.enable_prompt_embeds
    conversation = await with_decoded_embeds(conversation_of(body), enabled=takes_embeds, echoes=body.echo)
    job = ChatAnswer(llm, body, conversation, request_id_of(request, body.request_id), rank)
    if body.stream:
        return stream_response(request, job.stream())
    return await until_disconnected(request.receive, job.answer())


class ChatAnswer:
    """One request of this endpoint."""

    def __init__(
        self, llm: AsyncLLM, body: ChatCompletionRequest, conversation: Conversation, request_id: str, rank: int | None
    ) -> None:
        self._llm = llm
        self._body = body
        self._id = f"chatcmpl-{request_id}"
        self._rank = rank
        self._created = int(time.time())
        self._model = llm.model_names.resolve(body.model)
        # With logprob_token_ids, all of these and the sampled token are returned.
        self._num_top = len(body.logprob_token_ids) + 1 if body.logprob_token_ids else body.top_logprobs or 0
        if self._num_top == -1:
            self._num_top = llm.engine_info.vocab_size
        self._conversation = conversation
        self._echoed = echoed_text(body)
        self._params = chat_params(body, llm.default_sampling_fields(), self._conversation)
        self._usage = UsageCount()
        self._parts = LargeParts()

    async def answer(self) -> Response:
        """Return the whole answer as a response."""
        num_logprobs = 0
        result = ChatCompletion(self._id, "chat.completion", self._created, self._model, [], self._usage.usage())
        with closing(await self._start()) as turns:
            async for update in turns:
                self._count(update, turns.predicted_ids)
                time_slice = TimeSlice()
                for part in update.parts:
                    await time_slice.check()
                    num_logprobs += self._num_logprobs(part)
                    result.choices.append(await rendered(self._num_logprobs(part), partial(self._whole_choice, part)))
                if self._body.return_token_ids:
                    result.prompt_token_ids = update.output.prompt_token_ids
                if self._body.return_prompt_text:
                    result.prompt_text = turns.prompt
                if (positions := update.output.prompt_logprobs) is not None:
                    result.prompt_logprobs, num_prompt = await rendered_prompt_logprobs(positions, self._parts)
                    num_logprobs += num_prompt
                result.kv_transfer_params = kv_transfer_params_of(update.output)
        result.choices.sort(key=lambda choice: choice.index)
        result.usage, result.metrics = self._usage.usage(), self._usage.metrics()
        return await json_response(result, self._parts, num_logprobs)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as events; the first event of each choice has the role."""
        options = self._body.stream_options
        with_usage = options is not None and options.include_usage
        always = options is not None and with_usage and options.continuous_usage_stats
        chunk = ChatChunk(self._id, "chat.completion.chunk", self._created, self._model, [])
        if with_usage:
            chunk.usage = None
        begun: set[int] = set()
        with closing(await self._start()) as turns:
            if self._body.return_token_ids:
                chunk.prompt_token_ids = turns.prompt_token_ids
            if self._body.return_prompt_text:
                chunk.prompt_text = turns.prompt
            async for update in turns:
                self._count(update, turns.predicted_ids)
                if always:
                    chunk.usage = self._usage.usage()
                events, time_slice = [], TimeSlice()
                for part in update.parts:
                    await time_slice.check()
                    opening = [] if part.output.index in begun else self._opening(part.output.index)
                    begun.add(part.output.index)
                    num_logprobs = self._num_logprobs(part)
                    for choice in (*opening, *await rendered(num_logprobs, partial(self._next_choice, part))):
                        chunk.choices = [choice]
                        chunk.kv_transfer_params = kv_transfer_params_of(update.output) if choice.finish_reason else UNSET
                        events.append(await json_event(chunk, self._parts, num_logprobs))
                        chunk.prompt_token_ids = chunk.prompt_text = UNSET
                if events:
                    yield b"".join(events)
        if with_usage:
            chunk.choices, chunk.usage, chunk.kv_transfer_params = [], self._usage.usage(), UNSET
            chunk.metrics = self._usage.metrics()
            yield event(chunk)

    async def _start(self) -> TurnStream:
        body = self._body
        return await start_turn(
            self._llm,
            self._conversation,
            self._params,
            self._id,
            priority=body.priority,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            truncation_side=body.truncation_side or "left",
            cache_salt=body.cache_salt or "",
            data_parallel_rank=self._rank,
            model=body.model,
            prediction="" if body.prediction is None else body.prediction.text,
            kv_transfer=KvTransfer.of(body.kv_transfer_params),
        )

    def _count(self, update: TurnUpdate, predicted_ids: list[int]) -> None:
        self._usage.add(0, update.output)
        if predicted_ids:
            self._usage.add_predicted(update.output, predicted_ids)
        for part in update.parts:
            self._usage.add_reasoning(part.num_reasoning_tokens)

    def _opening(self, index: int) -> list[ChunkChoice]:
        """Return the chunks before all generated text: the role, and the echoed text if any."""
        opening = [ChunkChoice(index, Delta(role=_ROLE, content=""))]
        return [*opening, ChunkChoice(index, Delta(content=self._echoed))] if self._echoed else opening

    def _next_choice(self, part: TurnPart) -> list[ChunkChoice]:
        """Return the new part of an answer as one choice; an empty list if nothing is new."""
        new, with_ids = part.output, self._body.return_token_ids
        pieces = self._wanted(part.pieces)
        if not (pieces or part.finish_reason or with_ids or new.logprobs):
            return []
        choice = ChunkChoice(new.index, delta_of(pieces), self._logprobs(new), self._finish_reason(part))
        if new.stop_reason is not None:
            choice.stop_reason = new.stop_reason
        if with_ids:
            choice.token_ids = new.token_ids
        return [choice]

    def _whole_choice(self, part: TurnPart) -> ChatChoice:
        turn, output = AssistantTurn(), part.output
        turn.add(self._wanted(part.pieces))
        message = message_of(turn, _ROLE, echoed=self._echoed)
        choice = ChatChoice(output.index, message, self._logprobs(output), self._finish_reason(part), output.stop_reason)
        if self._body.return_token_ids:
            choice.token_ids = output.token_ids
        return choice

    def _finish_reason(self, part: TurnPart) -> str | None:
        """Return the finish reason in OpenAI's form: the call of a function that the request names ends with `stop`."""
        is_named = isinstance(self._conversation.tool_choice, NamedTool)
        return "stop" if is_named and part.finish_reason == "tool_calls" else part.finish_reason

    def _wanted(self, pieces: list[Piece]) -> list[Piece]:
        if self._body.include_reasoning:
            return pieces
        return [piece for piece in pieces if not isinstance(piece, Reasoning)]

    def _num_logprobs(self, part: TurnPart) -> int:
        return len(part.output.logprobs or ()) * self._num_top

    def _logprobs(self, output: CompletionOutput) -> ChatLogprobs | None:
        if output.logprobs is None:
            return None
        as_ids = bool(self._body.return_tokens_as_token_ids)
        shown = chat_logprobs(output.token_ids, output.logprobs, self._num_top, as_ids=as_ids, parts=self._parts)
        drop_candidates(output.logprobs)
        return shown
