"""Recordings: prepares recordings for one model: checks, pieces, prompts and identifiers. Called on the event loop."""

import asyncio
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.items import MediaError, PlacedMedia, ProcessedItem
from tetrad.tokenizer_svc.media.processes import MediaProcesses
from tetrad.tokenizer_svc.speech.cutting import BOUNDS
from tetrad.tokenizer_svc.speech.plans import PromptPlan, SpeechPrompts, SpeechRequest, Task

_MAX_PROMPT_CHARS = 8192
"""Maximum length of the text before a recording; models read about a thousand characters of it."""
_ITEM_BYTES = {"float32": 4, "int64": 8}


@dataclass(frozen=True)
class PreparedPiece:
    """A piece of a recording, and its prompt.

    Attributes:
        start_s: its start in the recording.
        duration_s: its length.
        token_ids: the ids of its prompt.
        placed: the preprocessed piece in its prompt.
    """

    start_s: float
    duration_s: float
    token_ids: Sequence[int]
    placed: PlacedMedia


@dataclass(frozen=True)
class PreparedRecording:
    """A recording as its model reads it.

    Attributes:
        duration_s: its length.
        plan: how its prompts were made.
        pieces: its pieces, in order.
    """

    duration_s: float
    plan: PromptPlan
    pieces: Sequence[PreparedPiece]


class Recordings:
    """Prepares the recordings of one model.

    Args:
        prompts: the prompts of the model's family.
        processes: decode and cut files, and run the feature extractor; owned by this object.
        sampling_rate: samples of a second, as the model reads them.
        tokenizer_hash: digest of the tokenizer's files, for identifiers.

    Attributes:
        tasks: what the model makes of recordings.
    """

    def __init__(self, prompts: SpeechPrompts, processes: MediaProcesses, *, sampling_rate: int, tokenizer_hash: str) -> None:
        self._prompts, self._processes, self._rate = prompts, processes, sampling_rate
        self._salt = json.dumps(["speech", tokenizer_hash]).encode()
        self.tasks: Sequence[Task] = prompts.tasks

    async def prepare(self, request: SpeechRequest) -> PreparedRecording:
        """Return a recording in pieces.

        Raises:
            InvalidRequest: the model does not do what is asked, or the file cannot be read.
        """
        if not request.data:
            raise InvalidRequest("The audio file is empty.", field="data")
        if len(request.prompt) > _MAX_PROMPT_CHARS:
            text = f"prompt has {len(request.prompt)} characters; the limit is {_MAX_PROMPT_CHARS}."
            raise InvalidRequest(text, field="prompt")
        plan = self._prompts.plan(request)
        try:
            found = await self._processes.process(request.data, {})
        except MediaError as failed:
            kind = f" ({request.media_type})" if request.media_type else ""
            text = f"Invalid or unsupported audio file{kind}: {str(failed).rstrip('.')}."
            raise InvalidRequest(text, field="data") from None
        return await asyncio.to_thread(self._split, request.data, plan, found)

    async def close(self) -> None:
        """Stop the processes."""
        await self._processes.close()

    def _split(self, data: bytes, plan: PromptPlan, found: ProcessedItem) -> PreparedRecording:
        bounds = found.integers(BOUNDS)
        digest = hashlib.sha256(self._salt + data).hexdigest()
        pieces = []
        for place, (start, end) in enumerate(itertools.pairwise(bounds)):
            identifier = hashlib.sha256(f"{digest} {start} {end}".encode()).hexdigest()
            token_ids, placed = plan.place(_piece(found, place), identifier)
            pieces.append(PreparedPiece(start / self._rate, (end - start) / self._rate, token_ids, placed))
        return PreparedRecording(bounds[-1] / self._rate, plan, pieces)


def _piece(found: ProcessedItem, place: int) -> ProcessedItem:
    """Return the tensors of a piece; their elements are copied."""
    tensors = {}
    for name, (dtype, shape, data) in found.tensors.items():
        if name != BOUNDS:
            size = math.prod(shape[1:]) * _ITEM_BYTES[dtype]
            tensors[name] = (dtype, shape[1:], data[place * size : (place + 1) * size])
    return ProcessedItem(tensors)
