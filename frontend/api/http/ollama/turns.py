"""Ollama turns: runs one generation request and writes its answer, whole or line by line."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from tetrad.frontend.api.http.ollama.objects import (
    AssistantMessage,
    Called,
    CalledFunction,
    Chatted,
    Generated,
    Progress,
    timestamp,
)
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import token_logprobs
from tetrad.frontend.api.http.schemas.objects import TokenLogprob, encode
from tetrad.frontend.api.http.sse.rendering import drop_logprobs, json_line, json_response, rendered
from tetrad.frontend.api.http.turns.blocks import Block, Blocks, Closed, Grown, Step, arguments_of
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.chat.turn_stream import TurnPart, TurnStream

_DONE_REASONS = {"length": "length"}

Answer = Generated | Chatted


class News(msgspec.Struct):
    """The new parts of a turn in one update."""

    content: str = ""
    thinking: str = ""
    calls: list[Called] = []
    logprobs: list[TokenLogprob] = []

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls or self.logprobs)

    def add(self, other: "News") -> None:
        """Append the parts of another update."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls = [*self.calls, *other.calls]
        self.logprobs = [*self.logprobs, *other.logprobs]


class Writer(Protocol):
    """Makes an answer, or a line of it, from the new parts of a turn."""

    def __call__(self, model: str, news: News) -> Answer:
        """Return the answer, not yet done."""
        ...


def write_generated(model: str, news: News) -> Generated:
    """Return an answer of /api/generate, or a line of it."""
    made = Generated(model=model, created_at=timestamp(), response=news.content)
    made.thinking, made.logprobs = news.thinking or UNSET, news.logprobs or UNSET
    return made


def write_chatted(model: str, news: News) -> Chatted:
    """Return an answer of /api/chat, or a line of it."""
    message = AssistantMessage(content=news.content, thinking=news.thinking or UNSET, tool_calls=news.calls or UNSET)
    return Chatted(model=model, created_at=timestamp(), message=message, logprobs=news.logprobs or UNSET)


class OllamaTurn:
    """The turn of one request.

    Args:
        start: starts the turn.
        write: makes the answers.
        model: model name in the answers.
        num_top: number of log-probabilities at each position besides the token's; None: no log-probabilities.
    """

    def __init__(
        self, start: Callable[[], Awaitable[TurnStream]], write: Writer, model: str, *, num_top: int | None = None
    ) -> None:
        self._start = start
        self._write = write
        self._model = model
        self._num_top = num_top
        self._blocks = Blocks()
        self._totals = TurnTotals()
        self._started_ns = time.monotonic_ns()
        self._first_ns: int | None = None
        self._parts, self._num_logprobs = LargeParts(), 0

    async def answer(self) -> Response:
        """Return the whole answer as a response."""
        whole = News()
        async for news in self._news():
            whole.add(news)
        answer = self._end(await self._written(whole))
        return await json_response(answer, self._parts, self._num_logprobs)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as lines; the last one has the counts."""
        async for news in self._news():
            if news:
                yield await json_line(await self._written(news), self._parts, self._num_logprobs)
                self._num_logprobs = 0
        yield line_of(self._end(self._write(self._model, News())))

    async def _news(self) -> AsyncIterator[News]:
        turn = await self._start()
        try:
            async for update in turn:
                part = self._totals.add(update)
                if self._first_ns is None:
                    self._first_ns = time.monotonic_ns()
                steps = self._blocks.feed(part.pieces)
                if part.finish_reason is not None:
                    steps += self._blocks.finish()
                news = self._told(steps)
                news.logprobs = await self._logprobs(part)
                yield news
                await drop_logprobs(update.output)
        finally:
            turn.close()

    async def _logprobs(self, part: TurnPart) -> list[TokenLogprob]:
        output = part.output
        if self._num_top is None or not output.logprobs:
            return []
        num_logprobs = len(output.logprobs) * max(self._num_top, 1)
        self._num_logprobs += num_logprobs
        return await rendered(
            num_logprobs, partial(token_logprobs, output.token_ids, output.logprobs, self._num_top, parts=self._parts)
        )

    async def _written(self, news: News) -> Answer:
        """Return an answer, or a line of it, in which marks replace long lists of log-probabilities."""
        news.logprobs = await rendered(
            self._num_logprobs, partial(self._parts.list_of, news.logprobs, max(self._num_top or 0, 1))
        )
        return self._write(self._model, news)

    def _told(self, steps: Sequence[Step]) -> News:
        news = News()
        for step in steps:
            match step:
                case Grown(Block(kind="text"), text):
                    news.content += text
                case Grown(Block(kind="reasoning"), text):
                    news.thinking += text
                case Closed(Block(kind="call") as block) if not self._is_cut_off(block):
                    news.calls = [*news.calls, Called(block.call_id, CalledFunction(block.name, arguments_of(block.text)))]
        return news

    def _is_cut_off(self, block: Block) -> bool:
        """Return whether the end of the turn has cut a call off: clients run every call, so it is not shown."""
        totals = self._totals
        is_cut = totals.finish_reason not in (None, "stop", "tool_calls") or isinstance(totals.stop_reason, str)
        return is_cut and block is self._blocks.blocks[-1] and self._blocks.ends_in_incomplete_call

    def _end(self, answer: Answer) -> Answer:
        end_ns = time.monotonic_ns()
        first_ns = end_ns if self._first_ns is None else self._first_ns
        answer.done, answer.done_reason = True, _DONE_REASONS.get(self._totals.finish_reason or "", "stop")
        answer.total_duration, answer.load_duration = end_ns - self._started_ns, 0
        answer.prompt_eval_count, answer.prompt_eval_duration = self._totals.prompt_tokens, first_ns - self._started_ns
        answer.eval_count, answer.eval_duration = self._totals.output_tokens, end_ns - first_ns
        return answer


def loaded(answer: Answer) -> Answer:
    """Return the answer to an empty request, which only loads the model: the model is loaded already."""
    answer.done, answer.done_reason = True, "load"
    return answer


def line_of(answer: Progress | dict[str, str]) -> bytes:
    """Return a line of a stream."""
    return encode(answer) + b"\n"
