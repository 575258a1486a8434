"""Events of the Messages API: converts the pieces of a turn to events, and collects the whole message.

Pure. The whole message is made from the same blocks as the events, so they cannot differ.
"""

import hashlib
from typing import Any

from tetrad.frontend.api.http.sse.named_events import Event
from tetrad.frontend.api.http.turns.blocks import Block, Blocks, Closed, Grown, Opened, Step, arguments_of
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.chat.turn_stream import TurnPart

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class MessageEvents:
    """One message in progress.

    Args:
        message_id: id of the message.
        model: model name in the message.
        max_tokens: the client's limit: a shorter answer that was cut off has filled the context.
    """

    def __init__(self, message_id: str, model: str, *, max_tokens: int) -> None:
        self._id = message_id
        self._model = model
        self._max_tokens = max_tokens
        self._blocks = Blocks()

    def start(self, totals: TurnTotals) -> list[Event]:
        """Return the events before the first block; `totals` has the counts of the prompt."""
        message = self._message([], totals, None, None)
        message["usage"] |= {"output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def add(self, part: TurnPart) -> list[Event]:
        """Return the events of the next part of the turn, without the events at the turn's end."""
        return _events(self._blocks.feed(part.pieces))

    def finish(self, totals: TurnTotals) -> list[Event]:
        """Return the events at the end of the turn."""
        events = _events(self._blocks.finish())
        reason, sequence = self._stop(totals)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [*events, {"type": "message_delta", "delta": delta, "usage": _usage(totals)}, {"type": "message_stop"}]

    def message(self, totals: TurnTotals) -> dict[str, Any]:
        """Return the whole message; call `finish` before."""
        return self._message([_whole(block) for block in self._blocks.blocks], totals, *self._stop(totals))

    def _message(
        self, content: list[dict[str, Any]], totals: TurnTotals, stop_reason: str | None, stop_sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(totals),
        }

    def _stop(self, totals: TurnTotals) -> tuple[str, str | None]:
        if isinstance(totals.stop_reason, str) and totals.finish_reason == "stop":
            return "stop_sequence", totals.stop_reason
        if totals.finish_reason == "length" and totals.output_tokens < self._max_tokens:
            return "model_context_window_exceeded", None
        return _STOP_REASONS.get(totals.finish_reason or "", "end_turn"), None


def _events(steps: list[Step]) -> list[Event]:
    return [event for step in steps for event in _events_of(step)]


def _events_of(step: Step) -> list[Event]:
    match step:
        case Opened(block):
            return [{"type": "content_block_start", "index": block.index, "content_block": _begun(block)}]
        case Grown(block, text):
            return [_delta(block, text)]
        case Closed(block):
            stop = {"type": "content_block_stop", "index": block.index}
            if block.kind != "reasoning":
                return [stop]
            signature = {"type": "signature_delta", "signature": _signature(block)}
            return [{"type": "content_block_delta", "index": block.index, "delta": signature}, stop]


def _begun(block: Block) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    # Without `citations`: Anthropic sends it only where there are some, and Vercel's AI SDK refuses null.
    return {"type": "text", "text": ""}


def _delta(block: Block, text: str) -> Event:
    match block.kind:
        case "reasoning":
            delta = {"type": "thinking_delta", "thinking": text}
        case "call":
            delta = {"type": "input_json_delta", "partial_json": text}
        case _:
            delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _whole(block: Block) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return _begun(block) | {"thinking": block.text, "signature": _signature(block)}
        case "call":
            return _begun(block) | {"input": arguments_of(block.text)}
    return _begun(block) | {"text": block.text}


def _signature(block: Block) -> str:
    """Return a placeholder for Anthropic's signature of thinking. Clients send it back; nothing here depends on it."""
    return hashlib.sha256(block.text.encode(errors="replace")).hexdigest()


def _usage(totals: TurnTotals) -> dict[str, Any]:
    return {
        # Anthropic counts cached tokens separately.
        "input_tokens": totals.prompt_tokens - totals.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": totals.cached_tokens,
        "output_tokens": totals.output_tokens,
        "output_tokens_details": {"thinking_tokens": totals.reasoning_tokens},
    }
