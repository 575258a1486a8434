"""Instructions: the fields of an EngineCoreRequest that all sequences of a request share.

Made by the input processor, put into messages by wire.py.
"""

from dataclasses import dataclass

from tetrad.frontend.parsing.formats import MarkIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """How to run one request.

    Attributes:
        external_id: the caller's name for it.
        eos_token_id: ends an output, unless that is to be ignored.
        stop_token_ids: end an output, too.
        bad_words_token_ids: never appear, as sequences.
        thinking: the marks of reasoning that has a budget; None: there is no budget, or nothing that it could be of.
        priority: larger is more urgent.
        arrival_time: wall clock in seconds.
        cache_salt: only requests with the same one share prefixes.
        data_parallel_rank: of the engine that it is pinned to.
    """

    external_id: str
    eos_token_id: int | None
    stop_token_ids: list[int]
    bad_words_token_ids: list[list[int]]
    thinking: MarkIds | None
    priority: int
    arrival_time: float
    cache_salt: str
    data_parallel_rank: int | None
