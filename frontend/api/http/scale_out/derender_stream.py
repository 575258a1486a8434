"""Derender stream: converts chunks of /inference/v1/generate to chunks of /v1/chat/completions or /v1/completions.

The answer is JSON: the chunk, and the state that the client sends with the next one.
"""

from functools import partial

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tetrad.frontend.api.http.chat.embeds import conversation_without_embeds
from tetrad.frontend.api.http.chat.objects import ChatChunk, ChunkChoice, Delta
from tetrad.frontend.api.http.chat.router import ChatAnswer
from tetrad.frontend.api.http.completions.answer import CompletionAnswer
from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.scale_out.derender_stream_bodies import DerenderChatChunkRequest, DerenderCompletionChunkRequest
from tetrad.frontend.api.http.scale_out.derender_stream_objects import DerenderedChatChunk, DerenderedCompletionChunk
from tetrad.frontend.api.http.scale_out.given_prompts import given_turn
from tetrad.frontend.api.http.scale_out.given_stream import GivenStream
from tetrad.frontend.api.http.schemas.generation_fields import StreamOptions
from tetrad.frontend.api.http.schemas.logprobs import num_chars
from tetrad.frontend.api.http.schemas.objects import Completion, CompletionChoice, Usage
from tetrad.frontend.api.http.sse.rendering import json_response, rendered
from tetrad.frontend.chat.turn_stream import TurnPart, TurnStream
from tetrad.frontend.chat.turns import callable_conversation
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.services.timers.time_slice import TimeSlice


class DerenderedChatStream(ChatAnswer):
    """The chat chunk of a chunk that the client sends."""

    def __init__(self, llm: AsyncLLM, body: DerenderChatChunkRequest) -> None:
        request = body.chat_request or RenderChatRequest(messages=[])
        request = request.model_copy(update={"model": body.model or request.model})
        super().__init__(llm, request, conversation_without_embeds(request), "", None)
        self._id = body.generate_chunk.request_id
        self._request = body.chat_request
        self._given = GivenStream(llm, body, self._created)
        if self._request is None:
            self._num_top = self._given.num_top

    async def answer(self) -> Response:
        """Return the chunk and the next state as a response."""
        given, new, time_slice = self._given, dict[int, TurnPart](), TimeSlice()
        turns = await self._start()
        async for update in turns:
            await time_slice.check()
            self._count(update, turns.predicted_ids)
            new |= {part.output.index: part for part in update.parts if part.output.index in given.new}
        chunk = ChatChunk(self._id, "chat.completion.chunk", given.created, self._model, [])
        chunk.usage = _usage(self._body.stream_options, given.usage(self._usage.usage().completion_tokens_details))
        if given.is_first and self._body.return_token_ids:
            chunk.prompt_token_ids = turns.prompt_token_ids
        if given.is_first and self._body.return_prompt_text:
            chunk.prompt_text = turns.prompt
        num_logprobs = 0
        for part in new.values():
            num_logprobs += self._num_logprobs(part)
            chunk.choices.append(await rendered(self._num_logprobs(part), partial(self._choice, part)))
        return await json_response(DerenderedChatChunk(chunk, given.state()), self._parts, num_logprobs)

    async def _start(self) -> TurnStream:
        llm, given = self._llm, self._given
        conversation = callable_conversation(self._conversation)
        ids = given.given_prompt_ids
        prompt, params = await given_turn(llm, conversation, self._params, ids, self._request)
        await given.replay(prompt, params)
        outputs = params.structured_outputs
        waits = outputs is not None and outputs.start_after_token_ids is not None
        return TurnStream(given, llm.chat_formats, conversation, constraint_waits=waits)

    def _choice(self, part: TurnPart) -> ChunkChoice:
        """Return the new part of an answer; its first one has the role, and the echoed text if any."""
        index = part.output.index
        found = self._next_choice(part)
        choice = found[0] if found else ChunkChoice(index, Delta())
        if not self._given.began(index):
            for opening in reversed(self._opening(index)):
                choice.delta.role = opening.delta.role or choice.delta.role
                choice.delta.content = (opening.delta.content or "") + (choice.delta.content or "")
        return choice


class DerenderedCompletionStream(CompletionAnswer):
    """The completion chunk of a chunk that the client sends."""

    def __init__(self, llm: AsyncLLM, body: DerenderCompletionChunkRequest) -> None:
        request = body.completion_request or RenderCompletionRequest(prompt="-")
        request = request.model_copy(update={"model": body.model or request.model})
        super().__init__(llm, request, "", (), None)
        self._id = body.generate_chunk.request_id
        self._given = GivenStream(llm, body, self._created)
        if body.completion_request is None:
            self._num_top = self._given.num_top

    async def answer(self) -> Response:
        """Return the chunk and the next state as a response."""
        given = self._given
        await given.replay(TokensPrompt(prompt_token_ids=given.given_prompt_ids or []), self._params)
        chunk = Completion(self._id, "text_completion", given.created, self._model, [])
        chunk.usage = _usage(self._body.stream_options, given.usage(None))
        for index in sorted(given.new):
            chunk.choices.append(await self._choice(index))
        return await json_response(DerenderedCompletionChunk(chunk, given.state()), self._parts, self._num_logprobs)

    async def _choice(self, index: int) -> CompletionChoice:
        """Return the new part of an output, after the characters of the earlier ones."""
        given = self._given
        if given.began(index):
            self._shown_chars[index] = sum(
                len(each.text) if each.logprobs is None else num_chars(each.token_ids, each.logprobs)
                for each in given.earlier(index)
            )
        new = given.output(index)
        return await self._next_choice(0, given.request_output(new), new) or CompletionChoice(index, "")


def _usage(options: StreamOptions | None, given: Usage | None) -> Usage | UnsetType | None:
    """Return the usage of a chunk: the given one; else null if the request wants one at the end."""
    return given if given is not None or (options is not None and options.include_usage) else UNSET
