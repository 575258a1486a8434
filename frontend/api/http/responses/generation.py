"""Generation: generates one response, from its request to its last event, with or without a waiting client."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence

from tetrad.frontend.api.http.responses.bodies import ResponsesRequest
from tetrad.frontend.api.http.responses.encrypted_content import ENCRYPTED_CONTENT
from tetrad.frontend.api.http.responses.events import ResponseEvents
from tetrad.frontend.api.http.responses.inputs import conversation_behind, num_logprobs_of, response_params
from tetrad.frontend.api.http.responses.items import listed_items
from tetrad.frontend.api.http.responses.objects import Json, new_response, text_logprobs
from tetrad.frontend.api.http.responses.store import NoStore, ResponseStore, StoredResponse
from tetrad.frontend.api.http.responses.text_tokens import shown_tokens
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import token_logprobs
from tetrad.frontend.api.http.schemas.objects import TokenLogprob
from tetrad.frontend.api.http.sse.named_events import Event
from tetrad.frontend.api.http.sse.rendering import rendered
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.chat.turn_stream import TurnPart, TurnStream
from tetrad.frontend.chat.turns import start_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()


class Generation:
    """The generation of one response.

    Args:
        llm: generates the response.
        store: contains earlier responses and stores this one, if the request asks for that.
        body: the request.
        request_id: the id of the request in logs.

    Attributes:
        is_saving_final: whether the saving of the final state has begun.
        saved: the state that the store had when the response was last saved; None: none, or it was deleted.

    Raises:
        InvalidRequest: the request is invalid.
        NotFound: the model does not exist.
    """

    def __init__(self, llm: AsyncLLM, store: ResponseStore, body: ResponsesRequest, request_id: str) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._llm = llm
        self._body = body
        self._request_id = request_id
        self._store = store
        self._keeps = body.store is not False and not isinstance(store, NoStore)
        self._is_created = self._is_final_kept = self.is_saving_final = False
        self.saved: Json | None = None
        self._num_top = num_logprobs_of(body)
        self._params = response_params(llm, body)
        response = new_response(
            self.id,
            body,
            self._params,
            model=llm.model_names.resolve(body.model),
            created_at=int(time.time()),
            store=self._keeps,
        )
        self.events = ResponseEvents(
            response,
            time.time,
            with_logprobs=self._num_top is not None,
            with_encrypted_content=ENCRYPTED_CONTENT in (body.include or ()),
        )
        self._totals = TurnTotals()
        self._input_items: list[Json] = []
        self._turn: TurnStream | None = None

    async def start(self) -> None:
        """Send the request to the engine; errors as in start_turn, and NotFound for unknown earlier responses."""
        body = self._body
        conversation, items = await conversation_behind(self._llm, self._store, body)
        self._input_items = listed_items(items, self.id)
        self._turn = await start_turn(
            self._llm,
            conversation,
            self._params,
            f"resp-{self._request_id}",
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            model=body.model,
        )

    async def updates(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each step, the last ones after saving; raise any failure. Closing it aborts the request."""
        assert self._turn is not None, "not started"
        self._llm.draining.callers.note()  # in the background, this task is not the one that found the model
        begun = False
        try:
            async for update in self._turn:
                part = self._totals.add(update)
                events = [] if begun else self.events.begin()
                begun = True
                events += self.events.add(part.pieces, await self._logprobs(part))
                if part.finish_reason is not None:
                    events += self.events.finish(self._totals)
                    await self._keep_final(events)
                yield events
        finally:
            self._turn.close()

    async def fail(self, error: TetradError) -> list[Event]:
        """Mark the response as failed, save it, and return the events of the failure."""
        events = self.events.fail(error, self._totals)
        await self._keep_final(events)
        return events

    async def cancel(self) -> None:
        """Mark the response as cancelled, unless it is final, and save it, unless it is already saved."""
        self.events.cancel(self._totals)
        if self.is_unsaved:
            await self._keep_final([])

    def close(self) -> None:
        """Abort the request unless it is finished."""
        if self._turn is not None:
            self._turn.close()

    @property
    def is_unsaved(self) -> bool:
        """Whether the response is final and must be stored, but is not stored yet."""
        return self._keeps and self.events.is_final and not self._is_final_kept

    async def save(self) -> None:
        """Store the current response, if the request asks for that; raise Unavailable if the store cannot be used."""
        if not self._keeps:
            return
        is_final, stored = self.events.is_final, StoredResponse(self.events.response(), self._input_items)
        self.is_saving_final = is_final
        if self._is_created:
            present = await self._store.finish(stored)
        else:
            await self._store.create(stored)
            present = stored
        self.saved = None if present is None else present.response
        self._is_created, self._is_final_kept = True, is_final

    async def _keep_final(self, events: Sequence[Event]) -> None:
        """Save the final response; if that fails, a waiting client still gets it, with a note that it is not stored."""
        try:
            await self.save()
        except Unavailable as error:
            log.error("responses.not_stored", response_id=self.id, reason=error.message)
            if not self._is_created:
                self.events.note_not_kept(events)

    async def _logprobs(self, part: TurnPart) -> Sequence[TokenLogprob]:
        ids, positions, num_top = part.output.token_ids, part.output.logprobs, self._num_top
        if num_top is None or positions is None:
            return ()
        tokens = await rendered(
            len(positions) * num_top, lambda: text_logprobs(token_logprobs(ids, positions, num_top, parts=LargeParts()))
        )
        return shown_tokens(tokens, part.output.text)
