"""Events of the Responses API: converts the pieces of a turn to numbered events, and collects the whole response.

Pure, except for the clock it is given. The response is made from the same blocks as the events, so they cannot differ.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tetrad.frontend.api.http.responses.calls import CallEvents
from tetrad.frontend.api.http.responses.encrypted_content import encrypted_content_of
from tetrad.frontend.api.http.responses.objects import Json, content_part, failure, item_id, output_item, usage
from tetrad.frontend.api.http.responses.text_tokens import TextTokens
from tetrad.frontend.api.http.schemas.objects import TokenLogprob
from tetrad.frontend.api.http.sse.named_events import Event
from tetrad.frontend.api.http.turns.blocks import Block, Blocks, Closed, Grown, Opened, Step
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.parsing.elements.pieces import Piece
from tetrad.services.errors import TetradError


class ResponseEvents:
    """One response in progress.

    Args:
        response: the initial response object; this class keeps and changes it.
        now: returns the time in seconds since 1970.
        with_logprobs: whether texts have log-probabilities.
        with_encrypted_content: whether reasoning has its encrypted content.
    """

    def __init__(
        self,
        response: Json,
        now: Callable[[], float],
        *,
        with_logprobs: bool = False,
        with_encrypted_content: bool = False,
    ) -> None:
        self._response = response
        self._id: str = response["id"]
        self._now = now
        self._with_logprobs = with_logprobs
        self._with_encrypted_content = with_encrypted_content
        self._blocks = Blocks()
        self._calls = CallEvents(response["tools"])
        self._number = 0
        # The status of the last block.
        self._status = "in_progress"
        # Log-probabilities of tokens whose text has no event yet; and of each text block, by its index.
        self._pending = TextTokens()
        self._logprobs: dict[int, list[TokenLogprob]] = {}

    @property
    def is_final(self) -> bool:
        """Whether the response will not change any more."""
        return self._response["status"] not in ("queued", "in_progress")

    def response(self) -> Json:
        """Return the present response; the returned object does not change later."""
        blocks = self._blocks.blocks
        items = [self._item(block, "completed" if block is not blocks[-1] else self._status) for block in blocks]
        return {**self._response, "output": items}

    def queue(self) -> list[Event]:
        """Return the first events of a response that will start later."""
        return [self._state("response.created"), self._state("response.queued")]

    def begin(self) -> list[Event]:
        """Return the events before the first item."""
        self._response["status"] = "in_progress"
        created = [] if self._number else [self._state("response.created")]
        return [*created, self._state("response.in_progress")]

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Return the events of the next pieces.

        Args:
            pieces: the pieces that became certain.
            logprobs: the log-probabilities of the tokens that arrived with them.
        """
        self._pending.add(logprobs)
        steps = self._blocks.feed(pieces)
        last = next((step for step in reversed(steps) if isinstance(step, Grown)), None)
        return [event for step in steps for event in self._events_of(step, is_last=step is last)]

    def finish(self, totals: TurnTotals) -> list[Event]:
        """Return the events at the end: the turn is complete, or has reached its maximum number of tokens."""
        cut_off = totals.finish_reason == "length"
        steps = self._blocks.finish()
        # Clients run complete calls; one that a stop string cut off must not run.
        has_cut_call = isinstance(totals.stop_reason, str) and self._blocks.ends_in_incomplete_call
        self._end("incomplete" if cut_off else "completed", totals)
        self._status = "incomplete" if cut_off or has_cut_call else "completed"
        events = [event for step in steps for event in self._events_of(step, self._status)]
        if cut_off:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
            return [*events, self._state("response.incomplete")]
        return [*events, self._state("response.completed")]

    def fail(self, error: TetradError, totals: TurnTotals) -> list[Event]:
        """Mark the response as failed and return its last event."""
        self._end("failed", totals)
        self._response["error"] = failure(error)
        return [self._state("response.failed")]

    def cancel(self, totals: TurnTotals) -> None:
        """Mark the response as cancelled, unless it is final; the API has no event for this."""
        if not self.is_final:
            self._end("cancelled", totals)

    def note_not_kept(self, events: Sequence[Event]) -> None:
        """Record in the response and in its last events that it is not stored."""
        self._response["store"] = False
        for event in events:
            if "response" in event:
                event["response"]["store"] = False

    def _end(self, status: str, totals: TurnTotals) -> None:
        self._response["status"] = status
        self._status = "completed" if status == "completed" else "incomplete"
        if totals.prompt_tokens:
            self._response["usage"] = usage(totals)
        if status == "completed":
            self._response["completed_at"] = int(self._now())

    def _events_of(self, step: Step, status: str = "completed", *, is_last: bool = True) -> list[Event]:
        match step:
            case Opened(block):
                return self._opened(block)
            case Grown(block, text):
                return self._grown(block, text, is_last=is_last)
            case Closed(block):
                return self._closed(block, status)

    def _opened(self, block: Block) -> list[Event]:
        # The block may already have text from the same pieces: the event of its start has none.
        empty = Block(block.index, block.kind, call_id=block.call_id, name=block.name)
        item = self._item(empty, "in_progress")
        added = self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind == "call":
            return [added]
        part = content_part(block, "", None)
        return [added, self._item_event("response.content_part.added", block, content_index=0, part=part)]

    def _grown(self, block: Block, text: str, *, is_last: bool) -> list[Event]:
        if block.kind != "text":
            self._pending.skip(text, is_last=is_last)
        match block.kind:
            case "reasoning":
                return [self._item_event("response.reasoning_text.delta", block, content_index=0, delta=text)]
            case "call":
                return [self._item_event(type_, block, **fields) for type_, fields in self._calls.grown(block, text)]
        logprobs = self._pending.take(text, is_last=is_last)
        self._logprobs.setdefault(block.index, []).extend(logprobs)
        return [self._item_event("response.output_text.delta", block, content_index=0, delta=text, logprobs=logprobs)]

    def _closed(self, block: Block, status: str) -> list[Event]:
        logprobs = self._logprobs.get(block.index, [])
        match block.kind:
            case "call":
                events = [self._item_event(type_, block, **fields) for type_, fields in self._calls.closed(block)]
            case "reasoning":
                events = [self._item_event("response.reasoning_text.done", block, content_index=0, text=block.text)]
            case _:
                fields: Json = {"text": block.text, "logprobs": logprobs}
                events = [self._item_event("response.output_text.done", block, content_index=0, **fields)]
        if block.kind != "call":
            part = content_part(block, block.text, logprobs)
            events.append(self._item_event("response.content_part.done", block, content_index=0, part=part))
        item = self._item(block, status)
        return [*events, self._event("response.output_item.done", output_index=block.index, item=item)]

    def _item(self, block: Block, status: str) -> Json:
        logprobs = self._logprobs.get(block.index, []) if self._with_logprobs else None
        item = output_item(self._id, block, status, None if logprobs is None else list(logprobs), self._response["tools"])
        if self._with_encrypted_content and block.kind == "reasoning" and block.text:
            item["encrypted_content"] = encrypted_content_of(block.text)
        return item

    def _state(self, type_: str) -> Event:
        return self._event(type_, response=self.response())

    def _item_event(self, type_: str, block: Block, /, **fields: Any) -> Event:
        return self._event(type_, item_id=item_id(self._id, block, self._response["tools"]), output_index=block.index, **fields)

    def _event(self, type_: str, /, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": type_, "sequence_number": number, **fields}
