"""TurnStream: converts the outputs of one request to pieces of its n turns, each as soon as it is certain.

Made by start_turn; used on the event loop of its request, for streamed and for whole answers.
"""

import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tetrad.frontend.chat.constraint import forced_parser
from tetrad.frontend.chat.conversation import Conversation, num_calls
from tetrad.frontend.chat.reasoning_tokens import ReasoningTokens
from tetrad.frontend.llm.output_stream import Outputs
from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.pieces import Piece
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.parsing.turn import TurnParser
from tetrad.frontend.parsing.wrapped_answer import WrappedAnswer
from tetrad.frontend.request.outputs import CompletionOutput, RequestOutput


@dataclass(slots=True)
class TurnPart:
    """The new pieces of one of the n turns.

    Attributes:
        output: the new text, ids and log-probabilities.
        pieces: the pieces that became certain with it; may be empty.
        finish_reason: "tool_calls" if the turn has stopped and has calls, and no stop string has cut the last one off; else the
            finish reason of the output.
        num_reasoning_tokens: the number of reasoning tokens, reported once per turn (see ReasoningTokens.count).
    """

    output: CompletionOutput
    pieces: list[Piece]
    finish_reason: str | None
    num_reasoning_tokens: int = 0


@dataclass(slots=True)
class TurnUpdate:
    """The new parts of a conversation's turns, from one output."""

    output: RequestOutput
    parts: list[TurnPart] = field(default_factory=list)


class TurnStream:
    """The turns of one request. Iterate over it, then close it, which aborts an unfinished request.

    Args:
        stream: the outputs of the request: deltas or one final output.
        formats: the model's formats.
        conversation: the conversation that the turns continue.
        constraint_waits: whether a constraint starts after the end of the reasoning.
    """

    def __init__(
        self, stream: Outputs, formats: ChatFormats, conversation: Conversation, *, constraint_waits: bool = False
    ) -> None:
        self._stream = stream
        self._formats = formats
        self._conversation = conversation
        self._constraint_waits = constraint_waits
        self._turns: dict[int, _Turn] = {}

    @property
    def prompt(self) -> str:
        """The rendered conversation."""
        return self._stream.prompt or ""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The ids of the rendered conversation."""
        return self._stream.prompt_token_ids

    @property
    def predicted_ids(self) -> list[int]:
        """The token ids that the caller expects as the answer."""
        return self._stream.predicted_ids

    async def __aiter__(self) -> AsyncIterator[TurnUpdate]:
        try:
            async for output in self._stream:
                yield TurnUpdate(output, [self._turn(each.index).read(each) for each in output.outputs])
        finally:
            self.close()

    def close(self) -> None:
        """Abort the request unless it is finished."""
        self._stream.close()

    def _turn(self, index: int) -> "_Turn":
        turn = self._turns.get(index)
        if turn is None:
            parser = _parser(self._formats, self._conversation, self.prompt, constraint_waits=self._constraint_waits)
            tokens = None if self._formats.reasoning is None else ReasoningTokens(self._formats.preamble.end)
            turn = self._turns[index] = _Turn(parser, tokens)
        return turn


class _Turn:
    """One of the n turns, in progress."""

    def __init__(self, parser: TurnParser, tokens: ReasoningTokens | None) -> None:
        self._parser = parser
        self._tokens = tokens

    def read(self, output: CompletionOutput) -> TurnPart:
        """Parse an output and return the part that it adds to the turn."""
        pieces = self._parser.feed(output.text)
        reason: str | None = output.finish_reason
        if reason is not None:
            pieces += self._parser.finish()
            # Clients run the calls of a turn that stopped with `tool_calls`; one that a stop string cut off must not run.
            is_cut_off = isinstance(output.stop_reason, str) and self._parser.has_incomplete_call
            if reason == "stop" and self._parser.num_tool_calls and not is_cut_off:
                reason = "tool_calls"
        num_reasoning = 0
        if self._tokens is not None:
            num_reasoning = self._tokens.count(output, pieces)
        return TurnPart(output, pieces, reason, num_reasoning)


def _parser(formats: ChatFormats, conversation: Conversation, prompt: str, *, constraint_waits: bool) -> TurnParser:
    reasoning, tools, forced = None, None, forced_parser(conversation)
    if formats.tools is not None and formats.tools.wraps_content and forced is not None:
        before = formats.reasoning.preamble.end if formats.reasoning is not None and constraint_waits else ""
        forced = WrappedAnswer(forced, functools.partial(formats.tools.parser, conversation.tools), behind=before)
    elif formats.tools is not None and (formats.tools.wraps_content or (conversation.tools and forced is None)):
        tools = formats.tools.parser(conversation.tools)
    if formats.reasoning is not None:
        # Without tools the mark of a call is only text: the reasoning may mention it.
        reads_calls = tools is not None and bool(conversation.tools)
        reasoning = formats.reasoning.parser(prompt, calls_end_it=reads_calls and not constraint_waits)
    new_id = OpenAICallIds.new_call_id if formats.tools is None else formats.tools.new_call_id
    num_earlier = num_calls(conversation.messages)
    return TurnParser(
        reasoning,
        tools,
        forced=forced,
        shows_reasoning=formats.reasoning is not None and formats.reasoning.is_content,
        parallel=conversation.parallel_tool_calls,
        new_id=lambda name, index: new_id(name, num_earlier + index),
    )
