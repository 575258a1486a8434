"""Replays: converts the token ids of an output, part by part, to the outputs that its request returned for them.

For clients that keep the ids of a stream themselves and send all of them again with each new part. A stream to the tokenizer
of its own decodes them, so that running requests do not wait; it is opened by the first replay. One event loop.
"""

import contextvars
import itertools
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from tetrad.frontend.request.logprobs import positions_of
from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, PositionLogprobs
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import LogprobRows
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.frontend.tokenizer.wire import Row
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.timers.time_slice import TimeSlice

_HANDLES = 1 << 32


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tokens of an output.

    Attributes:
        token_ids: the tokens; may be empty at the end.
        finish_reason: why the output ended with them; None: it goes on.
        stop_reason: the stop string or token id that ended it.
        logprobs: the candidates of each token, each position with its own width; None: without.
    """

    token_ids: list[int]
    finish_reason: FinishReasonName | None = None
    stop_reason: int | str | None = None
    logprobs: list[LogprobRows] | None = None


@dataclass(slots=True)
class _PartRows:
    """The rows of a part that have text, and their deltas."""

    part: Part
    rows: list[Row]
    deltas: list[str] = field(default_factory=list)


class Replays:
    """Replays the outputs of one model.

    Args:
        detokenizer: the stream of the replays; started here, closed by the caller.
        tokenizer: gives the texts of tokens.
    """

    def __init__(self, detokenizer: DetokenizerClient, tokenizer: TokenizerClient) -> None:
        self._detokenizer = detokenizer
        self._tokenizer = tokenizer
        self._handles = itertools.count(1)
        self._is_started = False

    async def outputs(
        self,
        index: int,
        parts: ListOf[Part],
        params: SamplingParams,
        context_token_ids: list[int],
        eos_token_ids: frozenset[int],
    ) -> list[CompletionOutput]:
        """Return one output for each part, with its new text.

        Args:
            index: index of the output.
            parts: all parts of the output so far, the first one first.
            params: the parameters of the request: stop strings and the treatment of special tokens.
            context_token_ids: the end of the prompt.
            eos_token_ids: ids that end an output without a stop reason.

        Raises:
            InvalidRequest: a part follows the end of the output.
            Unavailable: no tokenizer answered in time.
        """
        sequence = Sequence("", next(self._handles) % _HANDLES, index, context_token_ids, params, seed=0, max_tokens=0)
        has_logprobs = any(part.logprobs is not None for part in parts)
        by_token = has_logprobs or sequence.has_stops
        pending = [_PartRows(part, _rows(sequence, part, eos_token_ids, by_token=by_token)) for part in parts]
        await self._decode(sequence, pending, ended=bool(parts) and parts[-1].finish_reason is not None)
        if has_logprobs:
            await self._load_texts(parts)
        found, time_slice = [], TimeSlice()
        for each in pending:
            await time_slice.check()
            if sequence.finished:
                raise InvalidRequest(f"Choice {index} has ended; it takes no further tokens.")
            found.append(self._output(sequence, each, has_logprobs=has_logprobs))
        return found

    async def _decode(self, sequence: Sequence, pending: list[_PartRows], *, ended: bool) -> None:
        if not self._is_started:
            self._is_started = True
            # The stream outlives this call: it has neither the call's id nor its deadline.
            contextvars.Context().run(self._detokenizer.start)
        rows = [row for each in pending for row in each.rows]
        try:
            deltas = iter(await self._detokenizer.append(rows, [sequence.handle] if ended else []) if rows else [])
        finally:
            self._detokenizer.forget(sequence.handle)
        for each in pending:
            for _ in each.rows:
                delta = next(deltas)
                if isinstance(delta, TetradError):
                    raise delta
                each.deltas.append(delta)

    async def _load_texts(self, parts: ListOf[Part]) -> None:
        ids = {token_id for part in parts for token_id in part.token_ids}
        ids.update(token_id for part in parts for rows in part.logprobs or () for token_id in rows.token_ids)
        await self._tokenizer.load_token_texts(ids)

    def _output(self, sequence: Sequence, each: _PartRows, *, has_logprobs: bool) -> CompletionOutput:
        part, num_before = each.part, len(sequence.output_token_ids)
        for row, delta in zip(each.rows, each.deltas, strict=True):
            sequence.add_token_ids(row.token_ids)
            if sequence.add_text(delta):
                break
        else:
            # The id that ended the output has no text.
            sequence.add_token_ids(part.token_ids[len(sequence.output_token_ids) - num_before :])
        if part.finish_reason is not None and not sequence.finished:
            sequence.finish(part.finish_reason, part.stop_reason)
        taken = sequence.take_output(RequestOutputKind.DELTA)
        ids = sequence.output_token_ids[num_before:]
        return CompletionOutput(
            sequence.index,
            "" if taken is None else taken.text,
            ids,
            logprobs=self._positions(ids, each) if has_logprobs else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )

    def _positions(self, ids: list[int], each: _PartRows) -> list[PositionLogprobs]:
        """Return the log-probabilities of a part's tokens; a part without them has the texts of its tokens only."""
        given = each.part.logprobs or [LogprobRows([token_id], [0.0], [1], 1) for token_id in ids]
        texts: list[str | None] = [delta for row, delta in zip(each.rows, each.deltas, strict=True) if row.token_ids]
        texts += [None] * (len(ids) - len(texts))
        return [
            position
            for rows, text in zip(given[: len(ids)], texts, strict=False)
            for position in positions_of(rows, self._tokenizer.text_of, [text])
        ]


def _rows(sequence: Sequence, part: Part, eos_token_ids: frozenset[int], *, by_token: bool) -> list[Row]:
    """Return the tokens of a part that have text; the last part has a row at least, to which held-back text is added."""
    ids, params, stop = part.token_ids, sequence.params, part.stop_reason
    if part.finish_reason == "stop" and ids and not isinstance(stop, str) and not params.include_stop_str_in_output:
        ends = ids[-1] == stop or (stop is None and ids[-1] in eos_token_ids)
        ids = ids[:-1] if ends else ids
    if by_token and len(ids) > 1:
        return [Row(sequence, [token_id]) for token_id in ids]
    return [Row(sequence, ids)] if ids or part.finish_reason is not None else []
