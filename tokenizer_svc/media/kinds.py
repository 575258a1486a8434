"""Kinds of media: the interface between the rooms of images, audio and video and the code that they share.

Values only. `MediaKind` describes a modality before its process has started, `MediaRules` one whose processor is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tetrad.tokenizer_svc.media.embeds import EmbedsRules
from tetrad.tokenizer_svc.media.items import Expansion, Grid, Marks, ProcessedItem

IO = "io"
"""Name of the settings of reading an item, among those of its processor; no processor has it."""


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of one item, and the number of processes."""

    processes: int = 1
    timeout_s: float = 20.0
    memory_bytes: int = 2 << 30


def unchanged(kwargs: Mapping[str, Any], _: int) -> Mapping[str, Any]:
    """Return the settings of an item as a request has them."""
    return kwargs


def one_step(_: ProcessedItem) -> float:
    """Return no step."""
    return 0.0


def no_grid(_: ProcessedItem) -> Grid | None:
    """Return no grid."""
    return None


@dataclass(frozen=True)
class MediaRules:
    """How one model takes items of one modality.

    Attributes:
        modality: "image", "audio" or "video".
        settings: the processor's settings with its defaults; items of other settings have other identifiers.
        marks: how prompts write an item.
        message_text: text of an item in a message for templates that read only texts.
        max_embeds: number of embeddings of the largest item.
        expand: returns what replaces an item's placeholder.
        grid: returns frames, rows and columns of the embeddings, for models whose positions have three axes.
        time_step: returns the positions on the axis of time between two times of the grid; 0: one.
        prompt_kwargs: returns the settings of the items of a prompt; it gets those of the request and the number of items.
        start_id: id of the start token of prompts, if the model has an encoder and a decoder: items have no place in prompts,
            and no marks. None: another model.
        embeds: how the model takes embeddings of items; None: it takes none.
    """

    modality: str
    settings: Mapping[str, Any]
    marks: Marks
    message_text: str
    max_embeds: int
    expand: Callable[[ProcessedItem], Expansion]
    grid: Callable[[ProcessedItem], Grid | None] = no_grid
    time_step: Callable[[ProcessedItem], float] = one_step
    prompt_kwargs: Callable[[Mapping[str, Any], int], Mapping[str, Any]] = unchanged
    start_id: int | None = None
    embeds: EmbedsRules | None = None


@dataclass(frozen=True)
class MediaKind:
    """A modality that a model reads.

    Attributes:
        modality: "image", "audio" or "video".
        module: the module of its processes.
        arguments: arguments of the processor, a JSON object; `settings` are those that `kwargs` may change.
        kwargs: settings of the processor that a request may change: those that leave the input of the tower valid.
        limits: limits of one item.
        max_items: maximum number of items of a prompt.
        rules: returns the rules of the model; it gets the processor's settings with its defaults. Raises ModelError if the
            model's files contradict each other.
        io_kwargs: settings of reading a file that a request may change; the processor gets them under IO.
    """

    modality: str
    module: str
    arguments: Mapping[str, Any]
    kwargs: Sequence[str]
    limits: ProcessLimits
    max_items: int
    rules: Callable[[Mapping[str, Any]], MediaRules]
    io_kwargs: Sequence[str] = ()
