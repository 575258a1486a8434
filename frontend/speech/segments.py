"""Segments: splits the tokens of a piece of a recording at its timestamp tokens. Pure; knows ids and seconds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens between two times.

    Attributes:
        start_s: its start in the recording.
        end_s: its end.
        token_ids: the ids of its text.
        avg_logprob: average log-probability of these tokens and of the timestamp at their end.
        text: its text, which may begin with a space.
        first: index of its first token among those of its piece; its tokens follow one another.
        no_speech_prob: probability that nobody speaks in its piece; None: unknown.
    """

    start_s: float
    end_s: float
    token_ids: list[int]
    avg_logprob: float
    text: str = ""
    first: int = 0
    no_speech_prob: float | None = None

    def of_piece(self, text: str, no_speech_prob: float | None) -> "Segment":
        """Return the segment with a text, and what is known of its piece."""
        return replace(self, text=text, no_speech_prob=no_speech_prob)


def split_at_times(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    first_timestamp_id: int | None,
    step_s: float,
    start_s: float,
    duration_s: float,
    ends: Collection[int],
) -> list[Segment]:
    """Return the segments of a piece that begins with the timestamp 0.

    Times outside the piece are moved to its ends, and times before the previous one to that.

    Args:
        token_ids: the generated ids.
        logprobs: the log-probability of each.
        first_timestamp_id: id of the timestamp 0; None: there are no timestamps, and the piece is one segment.
        step_s: seconds between the times of two neighbouring ids.
        start_s: start of the piece in the recording.
        duration_s: length of the piece.
        ends: ids of the ends of text, which belong to no segment.
    """
    segments: list[Segment] = []
    begin, ids, values, first = 0.0, list[int](), list[float](), 0

    def close(end: float) -> None:
        if ids:
            mean = sum(values) / len(values)
            times = round(start_s + begin, 3), round(start_s + end, 3)
            segments.append(Segment(*times, list(ids), mean, first=first))
        ids.clear()
        values.clear()

    for place, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        if token_id in ends:
            continue
        first = place if not ids else first
        values.append(logprob)
        if first_timestamp_id is None or token_id < first_timestamp_id:
            ids.append(token_id)
            continue
        time = min(max((token_id - first_timestamp_id) * step_s, begin), duration_s)
        close(time)
        begin = time
    close(duration_s)
    return segments
