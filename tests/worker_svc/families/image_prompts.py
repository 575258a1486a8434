"""Prompts with images, of random rows in place of what a tower would make of them, and runners that are given these rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from tests.worker_svc.conftest import Driver
from tetrad.worker_svc.core.plan import GivenRows
from tetrad.worker_svc.core.step_inputs import StepInputs, StepRows

PLACEHOLDER = 7
"""The id of a token that an image's row replaces."""
_HIDDEN = 64


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt with images.

    Attributes:
        token_ids: [T].
        places: [N], the tokens that rows replace.
        values: [N, hidden].
        deep: [L, N, hidden]; None: nothing is added behind the first layers.
        axes: [3, T] positions of the tokens by time, height and width.
    """

    token_ids: list[int]
    places: np.ndarray
    values: np.ndarray
    deep: np.ndarray | None
    axes: np.ndarray

    def axes_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the positions [3, N] on the axes; text behind the prompt goes on by one on all of them."""
        behind = self.axes.max() + 1 + positions - len(self.token_ids)
        return np.where(positions < len(self.token_ids), self.axes[:, np.minimum(positions, len(self.token_ids) - 1)], behind)

    @torch.inference_mode()
    def logprobs(self, model: torch.nn.Module, output: list[int], *, has_axes: bool) -> torch.Tensor:
        """Return transformers' log-probabilities [outputs, V] of each output."""
        ids = torch.tensor([self.token_ids + output[:-1]])
        text, places = model.get_decoder(), torch.from_numpy(self.places)
        embeddings = model.get_input_embeddings()(ids)
        embeddings[0, places] = torch.from_numpy(self.values)
        options = {}
        if has_axes:
            options["position_ids"] = torch.from_numpy(self.axes_at(np.arange(ids.shape[1])))[:, None]
        if self.deep is not None:
            options["visual_pos_masks"] = torch.zeros(ids.shape, dtype=torch.bool).index_fill_(1, places, 1)
            options["deepstack_visual_embeds"] = list(torch.from_numpy(self.deep))
        hidden = text(inputs_embeds=embeddings, **options).last_hidden_state
        return model.lm_head(hidden[0, len(self.token_ids) - 1 :]).float().log_softmax(-1)


def image_prompt(seed: int, pieces: list[int | tuple[int, int]], *, num_deep: int = 0) -> ImagePrompt:
    """Return a prompt of pieces: numbers of tokens of text, and (height, width) of images."""
    random = np.random.default_rng(seed)
    ids, axes, places, begin = [], [], [], 0
    for piece in pieces:
        if isinstance(piece, int):
            its_axes = np.tile(np.arange(piece), (3, 1))
            ids += random.integers(10, 320, piece).tolist()
        else:
            its_axes = np.stack([np.zeros(piece, np.int64), *np.indices(piece)]).reshape(3, -1)
            places += range(len(ids), len(ids) + its_axes.shape[1])
            ids += [PLACEHOLDER] * its_axes.shape[1]
        axes.append(begin + its_axes)
        begin += int(its_axes.max()) + 1
    values = random.normal(0, 0.5, (1 + num_deep, len(places), _HIDDEN)).astype(np.float32)
    return ImagePrompt(
        ids, np.array(places, np.int64), values[0].copy(), values[1:] if num_deep else None, np.concatenate(axes, 1)
    )


class GivenPrompts:
    """The rows of prompts with images, by handle, in place of a runner's own."""

    def __init__(self, driver: Driver, prompts: Mapping[int, ImagePrompt], *, has_axes: bool) -> None:
        self._batch = driver.runner.batch
        self._prompts = {handle: prompt for handle, prompt in prompts.items() if len(prompt.places)}
        forward = driver.runner._forward
        driver.runner._embeds = self
        if has_axes:
            driver.runner._forward = lambda inputs: forward(replace(inputs, axes=self._axes(inputs)))

    def _axes(self, inputs: StepInputs) -> np.ndarray | None:
        handles = self._batch.handles[inputs.slots].tolist()
        if not self._prompts.keys() & handles:
            return None
        axes = np.tile(inputs.positions, (3, 1))
        for handle, first, count in zip(handles, inputs.first_token, inputs.num_scheduled, strict=True):
            if handle in self._prompts:
                axes[:, first : first + count] = self._prompts[handle].axes_at(inputs.positions[first : first + count])
        return axes

    def gather(self, inputs: StepRows) -> GivenRows | None:
        rows, parts = [], []
        for row, handle in enumerate(self._batch.handles[inputs.slots].tolist()):
            prompt = self._prompts.get(handle)
            if prompt is None:
                continue
            begin, count, first = inputs.num_computed[row], inputs.num_scheduled[row], inputs.first_token[row]
            inside = (prompt.places >= begin) & (prompt.places < begin + count)
            rows += (first + prompt.places[inside] - begin).tolist()
            parts.append([prompt.values[inside], None if prompt.deep is None else prompt.deep[:, inside]])
        if not rows:
            return None
        values, deep = zip(*parts, strict=True)
        has_deep = deep[0] is not None
        return GivenRows(np.array(rows), np.concatenate(values), np.concatenate(deep, 1) if has_deep else None)
