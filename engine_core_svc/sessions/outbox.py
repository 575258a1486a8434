"""Outbox: queues the outputs of a session, and merges them while its frontend is slow.

The step loop fills it and never waits; the session's stream empties it. Its size is limited: beyond `capacity` messages, later
steps are merged into the last, request by request, so a slow frontend costs memory per request, not per step. While a session
has too many unread answers, its requests are not read (`wait_for_room`). Steps with many log-probabilities are not merged:
these cost memory per token in both cases, and the outputs of one request must fit one message.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, replace

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, FinishReason, Logprobs
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.services.errors import TetradError
from tetrad.services.message_size import BATCH_BYTES
from tetrad.services.rpc.columns import U32_BYTES


@dataclass(slots=True)
class StepOutputs:
    """The outputs of one step, or of several merged steps with the same weights, for one session."""

    step_id: int
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    stats: SchedulerStats | None = None
    timestamp: float = field(default_factory=time.monotonic)
    weight_version: str = ""

    @property
    def num_bytes(self) -> int:
        """The approximate bytes of its tokens and log-probabilities in messages."""
        return sum(map(_num_bytes, self.outputs))

    def merge(self, later: "StepOutputs") -> None:
        """Add a later step's outputs; the tokens of a request are joined."""
        by_key = {output.request.key: i for i, output in enumerate(self.outputs)}
        for output in later.outputs:
            index = by_key.get(output.request.key)
            if index is None:
                self.outputs.append(output)
            else:
                self.outputs[index] = _join(self.outputs[index], output)
        self.step_id, self.timestamp = later.step_id, later.timestamp
        self.stats = later.stats or self.stats


@dataclass(frozen=True, slots=True)
class Rejection:
    """The answer for a request that was rejected before it was scheduled."""

    request_id: str
    error: TetradError


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that concerns every request; `kind` is a name of the contract's EngineNoticeKind without its prefix."""

    kind: str
    text: str


Message = StepOutputs | Rejection | Notice


class Outbox:
    """The pending messages of a session, in order.

    Args:
        capacity: maximum number of messages before steps are merged.
        max_answers: number of pending outputs and rejections from which on no further requests are read.
    """

    def __init__(self, capacity: int = 32, max_answers: int = 16_384) -> None:
        self._capacity, self._max_answers = capacity, max_answers
        self._messages: deque[Message] = deque()
        self._num_answers = 0
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Add a message; if the outbox is full, merge a step into the last one, and replace notices of the same kind."""
        last = self._messages[-1] if len(self._messages) >= self._capacity else None
        if isinstance(last, StepOutputs) and isinstance(message, StepOutputs) and _fit_together(last, message):
            size_before = len(last.outputs)
            last.merge(message)
            self._count(len(last.outputs) - size_before)
        else:
            if last is not None and isinstance(message, Notice):
                self._drop_notices(message.kind)
            self._messages.append(message)
            self._count(_num_answers(message))
        self._wake.set()

    def close(self) -> None:
        """Close the outbox: the stream ends after the pending messages."""
        self._closed = True
        self._wake.set()
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Wait while too many answers are pending."""
        await self._has_room.wait()

    async def get(self) -> Message | None:
        """Wait for the next message and return it; None if the outbox is closed and empty."""
        while not self._messages:
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        message = self._messages.popleft()
        self._count(-_num_answers(message))
        return message

    def _count(self, difference: int) -> None:
        self._num_answers += difference
        if self._num_answers < self._max_answers or self._closed:
            self._has_room.set()
        else:
            self._has_room.clear()

    def _drop_notices(self, kind: str) -> None:
        kept = [message for message in self._messages if not (isinstance(message, Notice) and message.kind == kind)]
        self._messages = deque(kept)


def _num_answers(message: Message) -> int:
    if isinstance(message, StepOutputs):
        return len(message.outputs)
    return 1 if isinstance(message, Rejection) else 0


def _fit_together(first: StepOutputs, second: StepOutputs) -> bool:
    if first.weight_version != second.weight_version:
        return False
    # A frontend takes the last token of a stopped request for a stop token, which has no text. A constraint stops a request
    # after its last token, in an output without tokens: joined with earlier tokens, it would take the text of the last one.
    stopped = {
        output.request.key
        for output in second.outputs
        if output.finish_reason is FinishReason.STOP and not output.new_token_ids
    }
    if stopped and any(output.request.key in stopped for output in first.outputs):
        return False
    return first.num_bytes + second.num_bytes <= BATCH_BYTES


def _num_bytes(output: EngineCoreOutput) -> int:
    rows = (output.logprobs, output.prompt_logprobs)
    columns = sum(len(each.token_ids) + len(each.logprobs) + len(each.ranks) for each in rows if each is not None)
    columns += 0 if output.prompt_scores is None else len(output.prompt_scores.scores)
    return columns + U32_BYTES * (len(output.new_token_ids) + 2)


def _join(earlier: EngineCoreOutput, later: EngineCoreOutput) -> EngineCoreOutput:
    return replace(
        later,
        new_token_ids=earlier.new_token_ids + later.new_token_ids,
        logprobs=_join_logprobs(earlier.logprobs, later.logprobs),
        prompt_logprobs=earlier.prompt_logprobs or later.prompt_logprobs,
        prompt_scores=earlier.prompt_scores or later.prompt_scores,
        prefill_stats=earlier.prefill_stats or later.prefill_stats,
    )


def _join_logprobs(earlier: Logprobs | None, later: Logprobs | None) -> Logprobs | None:
    if earlier is None or later is None:
        return earlier or later
    return Logprobs(
        earlier.token_ids + later.token_ids,
        earlier.logprobs + later.logprobs,
        earlier.ranks + later.ranks,
        earlier.num_positions + later.num_positions,
        later.width,
    )
