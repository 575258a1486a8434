"""wire: converts the tokens of a step to messages of the Detokenize stream, and the answers to deltas. It only converts."""

import itertools
from dataclasses import dataclass

from tetrad.frontend.request.sequence import Sequence
from tetrad.services.errors import TetradError
from tetrad.services.message_size import batches
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.v1 import tokenizer_pb2

_MOST_ENTRIES = 32_768
"""Maximum number of rows plus tokens of one message: its answer has all their texts, up to hundreds of characters a token."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence whose text is returned as one delta. A sequence may have several rows in a message."""

    sequence: Sequence
    token_ids: list[int]


def parts_of(rows: list[Row]) -> list[list[Row]]:
    """Return the rows in parts, one for each message. All rows of a sequence are in one part.

    If the stream breaks between two parts, the next step opens the handles of the finished parts again.
    """
    if _num_entries(rows) <= _MOST_ENTRIES:
        return [rows]
    by_sequence = [list(each) for _, each in itertools.groupby(rows, lambda row: row.sequence.handle)]
    return [[row for group in part for row in group] for part in batches(by_sequence, _num_entries, _MOST_ENTRIES)]


def _num_entries(rows: list[Row]) -> int:
    return len(rows) + sum([len(row.token_ids) for row in rows])


def finals_of(part: list[Row], final_handles: list[int]) -> list[int]:
    """Return the handles of a part that end with this step."""
    if not final_handles:
        return []
    handles = {row.sequence.handle for row in part}
    return [handle for handle in final_handles if handle in handles]


def encode_open(sequence: Sequence) -> tokenizer_pb2.DetokenizeOpen:
    """Return the message that opens the handle of a sequence, with the ids so far."""
    return tokenizer_pb2.DetokenizeOpen(
        handle=sequence.handle,
        context_token_ids=pack_u32(sequence.context_token_ids()),
        num_generated=len(sequence.output_token_ids),
        num_chars_emitted=sequence.num_raw_chars,
        skip_special_tokens=sequence.params.skip_special_tokens,
        spaces_between_special_tokens=sequence.params.spaces_between_special_tokens,
    )


def encode_append(rows: list[Row], final_handles: list[int]) -> tokenizer_pb2.DetokenizeAppend:
    """Return the tokens of rows as columns."""
    return tokenizer_pb2.DetokenizeAppend(
        handles=pack_u32([row.sequence.handle for row in rows]),
        num_tokens=pack_u32([len(row.token_ids) for row in rows]),
        token_ids=pack_u32([token_id for row in rows for token_id in row.token_ids]),
        final_handles=pack_u32(final_handles),
    )


def decode_deltas(rows: list[Row], response: tokenizer_pb2.DetokenizeResponse) -> list[str | TetradError]:
    """Return the delta or error of each row. The response has the order of the rows, without failed handles.

    Raises:
        ValueError: the response is inconsistent or belongs to another message.
    """
    failures = {failure.handle: from_status(failure.status) for failure in response.failures}
    handles = unpack_u32(response.handles)
    if len(handles) != len(response.deltas):
        raise ValueError(f"{len(handles)} handles have {len(response.deltas)} deltas")
    answered = iter(zip(handles, response.deltas, strict=True))
    present = next(answered, None)
    deltas: list[str | TetradError] = []
    for row in rows:
        handle = row.sequence.handle
        if present is not None and present[0] == handle:
            delta = present[1]
            present = next(answered, None)
            # A failed handle may still be present, with an empty delta.
            deltas.append(failures.get(handle, delta))
        elif handle in failures:
            deltas.append(failures[handle])
        else:
            raise ValueError(f"handle {handle} was left out")
    if present is not None:
        raise ValueError(f"handle {present[0]} has no place there")
    return deltas
