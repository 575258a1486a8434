"""/v1/messages and /v1/messages/count_tokens: Anthropic's API, on the same turns as all chat endpoints."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import ErrorForm, documented, stream_of_events
from tetrad.frontend.api.http.messages import documentation as docs
from tetrad.frontend.api.http.messages.blocks import conversation_of
from tetrad.frontend.api.http.messages.bodies import CountTokensRequest, MessagesRequest
from tetrad.frontend.api.http.messages.errors import messages_error
from tetrad.frontend.api.http.messages.events import MessageEvents
from tetrad.frontend.api.http.messages.params import message_params
from tetrad.frontend.api.http.messages.route import MessagesRoute
from tetrad.frontend.api.http.requests.body import read_body, read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.named_events import named_event, named_events
from tetrad.frontend.api.http.sse.streams import StreamForm, stream_response, until_disconnected
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.chat.turn_stream import TurnStream
from tetrad.frontend.chat.turns import render_conversation, start_turn
from tetrad.frontend.llm.async_llm import AsyncLLM

router = APIRouter(route_class=MessagesRoute)

_PING = named_event({"type": "ping"})
MESSAGES_ERRORS = ErrorForm(docs.MESSAGE_ERROR, lambda error: messages_error(error, "9f2d"))
_CREATE = documented(
    MessagesRequest,
    answer=docs.MESSAGE,
    example=docs.MESSAGE_EXAMPLE,
    events=stream_of_events(docs.MESSAGE_EVENT),
    error_form=MESSAGES_ERRORS,
)
_COUNT = documented(
    CountTokensRequest, answer=docs.MESSAGE_TOKENS, example=docs.MESSAGE_TOKENS_EXAMPLE, error_form=MESSAGES_ERRORS
)


@router.post("/v1/messages", **_CREATE)
async def create_message(request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    body = await read_prompt_body(request, MessagesRequest)
    job = _Message(llm_of(request, body.model), body, request_id_of(request, body.request_id))
    if body.stream:
        return stream_response(request, job.stream(), job.form)
    return JsonResponse(await until_disconnected(request.receive, job.run()))


@router.post("/v1/messages/count_tokens", **_COUNT)
async def count_tokens(request: Request) -> Response:
    """Return the number of tokens of a conversation."""
    body = await read_body(request, CountTokensRequest)
    llm = llm_of(request, body.model)
    llm.model_names.resolve(body.model)
    prompt = await until_disconnected(request.receive, render_conversation(llm, conversation_of(body)))
    return JsonResponse({"input_tokens": len(prompt["prompt_token_ids"])})


class _Message:
    """One request for a message."""

    def __init__(self, llm: AsyncLLM, body: MessagesRequest, request_id: str) -> None:
        self._llm = llm
        self._body = body
        self._request_id = request_id
        model = llm.model_names.resolve(body.model)
        self._conversation = conversation_of(body)
        self._events = MessageEvents(f"msg_{uuid.uuid4().hex}", model, max_tokens=body.max_tokens)
        self._totals = TurnTotals()
        self._params = message_params(llm, body, self._conversation)

    @property
    def form(self) -> StreamForm:
        """The error event and the keep-alive event of the stream."""
        return StreamForm(b"", _PING, lambda error: named_event(messages_error(error, self._request_id)))

    async def run(self) -> dict[str, Any]:
        """Return the whole message."""
        turn = await self._start()
        try:
            async for update in turn:
                self._events.add(self._totals.add(update))
        finally:
            turn.close()
        self._events.finish(self._totals)
        return self._events.message(self._totals)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the message as events. Errors are raised; the stream writes them as `form` defines."""
        turn = await self._start()
        begun = False
        try:
            async for update in turn:
                part = self._totals.add(update)
                events = [] if begun else self._events.start(self._totals)
                begun = True
                events += self._events.add(part)
                if part.finish_reason is not None:
                    events += self._events.finish(self._totals)
                if events:
                    yield named_events(events)
        finally:
            turn.close()

    async def _start(self) -> TurnStream:
        body = self._body
        return await start_turn(
            self._llm,
            self._conversation,
            self._params,
            f"msg-{self._request_id}",
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            model=body.model,
        )
