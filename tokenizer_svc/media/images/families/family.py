"""Family: the rules of a family of models for images in prompts. The other files of this room hold the rules, table.py all.

A rule reads facts of the model and of one processed image. The rules follow `replace_image_token` of transformers' processors
(models/*/processing_*.py), so that prompts have the same tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, Grid, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles


def _no_grid(*_: object) -> Grid | None:
    return None


def embeds_as_marks(model: ImageModel, _: ProcessedItem, num_embeds: int) -> Expansion:
    """Return one mark for all embeddings of an item that a client has encoded."""
    return Expansion(model.mark, 1, num_embeds)


def _no_settings(_: ModelFiles) -> Mapping[str, Any]:
    return {}


def mark_of(model: ImageModel) -> str:
    """Return the text of the token that an embedding replaces."""
    return model.mark


@dataclass(frozen=True)
class Family:
    """The rules of a family.

    Attributes:
        image_processor: the image processor of a model whose files name none.
        expand: returns what replaces an image's placeholder.
        max_embeds: returns the number of embeddings of the largest image.
        kwargs: settings of the image processor that a request may change: those that leave the input of the vision tower valid.
        placeholder: returns the text that a prompt has for an image before it is expanded.
        message_text: returns an image's text in a message for templates that read only texts, as in vLLM.
        grid: returns frames, rows and columns of the embeddings, for models whose positions have three axes.
        settings: returns settings of the image processor that transformers' processor sets.
        expand_embeds: returns what replaces the placeholder of an item that a client has encoded, of so many embeddings. None:
            the model takes no such items, as in vLLM.
        embeds_grid: name of the tensor with the grid of such an item; empty: it has none.
        splits_single: the image processor splits an image only if its prompt has no other.
        stacked: see PilProcessor.
        repeats_frames: see PilProcessor.
    """

    image_processor: str
    expand: Callable[[ImageModel, ProcessedItem], Expansion]
    max_embeds: Callable[[ImageModel], int]
    kwargs: tuple[str, ...] = ()
    placeholder: Callable[[ImageModel], str] = mark_of
    message_text: Callable[[ImageModel], str] = mark_of
    grid: Callable[[ImageModel, ProcessedItem], Grid | None] = _no_grid
    settings: Callable[[ModelFiles], Mapping[str, Any]] = _no_settings
    expand_embeds: Callable[[ImageModel, ProcessedItem, int], Expansion] | None = None
    embeds_grid: str = ""
    splits_single: bool = False
    stacked: bool = True
    repeats_frames: bool = False
