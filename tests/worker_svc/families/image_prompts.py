"""Prompts with images: the encoder cache has random rows in place of a tower's output, and transformers is given the same."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.core.media import EncodedItem, Modality, ModelMedia
from tetrad.worker_svc.core.plan import MediaSpan
from tetrad.worker_svc.media.encoder_cache import EncoderCache

PLACEHOLDER = 7
"""The id of a token that an image's row replaces."""
_HIDDEN = 64


class RowsTower:
    """A tower that no test asks to encode anything: its images are in the cache already."""

    has_own_thread = True
    is_attended = False
    num_parameters = size_bytes = embed_bytes = 0

    def __init__(self, *, uses_mrope: bool, num_deep_layers: int, is_whole: bool) -> None:
        self.uses_mrope, self.num_deep_layers = uses_mrope, num_deep_layers
        self.modalities = (Modality("image", 1000, is_whole),)


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt with images.

    Attributes:
        token_ids: [T].
        spans: the images among the tokens.
        images: the embeddings of each image.
        axes: [3, T] positions of the tokens by time, height and width; None: the model's positions have one axis.
    """

    token_ids: list[int]
    spans: tuple[MediaSpan, ...]
    images: tuple[EncodedItem, ...]
    axes: np.ndarray | None

    def check(self, request: Any, model: torch.nn.Module, tolerance: float) -> None:
        """Check that a request's greedy outputs and their log-probabilities are transformers'."""
        expected = self.logprobs(model, request.output)
        assert request.output == expected.argmax(-1).tolist()
        for (ids, values, _), row in zip(request.logprobs, expected.numpy(), strict=True):
            np.testing.assert_allclose(values, row[ids], atol=tolerance)

    @torch.inference_mode()
    def logprobs(self, model: torch.nn.Module, output: list[int]) -> torch.Tensor:
        """Return transformers' log-probabilities [outputs, V] of each output."""
        ids = torch.tensor([self.token_ids + output[:-1]])
        embeddings, is_image = model.get_input_embeddings()(ids), torch.zeros(ids.shape, dtype=torch.bool)
        for span in self.spans:
            is_image[0, span.offset : span.offset + span.length] = True
        options = {}
        if self.images:
            embeddings[is_image] = torch.from_numpy(np.concatenate([image.rows for image in self.images]))
        if self.axes is not None:
            behind = self.axes.max() + 1 + np.arange(len(output) - 1)
            axes = np.concatenate([self.axes, np.tile(behind, (3, 1))], 1)
            options["position_ids"] = torch.from_numpy(axes)[:, None]
        if self.images and self.images[0].deep is not None:
            options["visual_pos_masks"] = is_image
            options["deepstack_visual_embeds"] = list(
                torch.from_numpy(np.concatenate([image.deep for image in self.images], 1))
            )
        decoder = model.get_decoder()
        decoder = getattr(decoder, "model", decoder)  # Llama 4's has the head
        hidden = decoder(inputs_embeds=embeddings, **options).last_hidden_state
        return model.get_output_embeddings()(hidden[0, len(self.token_ids) - 1 :]).float().log_softmax(-1)


def image_prompt(seed: int, pieces: list[int | tuple[int, int]], *, has_axes: bool = False, num_deep: int = 0) -> ImagePrompt:
    """Return a prompt of pieces: numbers of tokens of text, and (height, width) of images."""
    random = np.random.default_rng(seed)
    ids, axes, spans, images, begin = [], [], [], [], 0
    for piece in pieces:
        if isinstance(piece, int):
            its_axes = np.tile(np.arange(piece), (3, 1))
            ids += random.integers(10, 320, piece).tolist()
        else:
            its_axes = np.stack([np.zeros(piece, np.int64), *np.indices(piece)]).reshape(3, -1)
            count, grid = its_axes.shape[1], (1, *piece) if has_axes else None
            spans.append(MediaSpan(f"{seed} {len(spans)}", "image", len(ids), count, None, count, grid))
            rows = random.normal(0, 0.5, (1 + num_deep, count, _HIDDEN)).astype(np.float32)
            images.append(EncodedItem(rows[0], rows[1:] if num_deep else None))
            ids += [PLACEHOLDER] * count
        axes.append(begin + its_axes)
        begin += int(its_axes.max()) + 1
    return ImagePrompt(ids, tuple(spans), tuple(images), np.concatenate(axes, 1) if has_axes else None)


def media_of(prompts: list[ImagePrompt], *, has_axes: bool = False, num_deep: int = 0, is_whole: bool = False) -> ModelMedia:
    """Return a tower, and a cache with the images of all prompts; `is_whole`: see Modality."""
    cache = EncoderCache()
    for prompt in prompts:
        for span, image in zip(prompt.spans, prompt.images, strict=True):
            cache.put(0, span.identifier, image, 0)
    return ModelMedia(RowsTower(uses_mrope=has_axes, num_deep_layers=num_deep, is_whole=is_whole), cache)
