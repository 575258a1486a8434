"""Whisper tower: runs the encoder of Whisper with transformers' own module, and computes the keys and values of its output.

Each layer of the decoder attends to the whole output (cross-attention). Its keys and values do not depend on the tokens, so the
tower computes them for all layers, and the encoder cache has them in place of embeddings: requests with the same audio share
them. Knows nothing of tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, one_line
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.media import AUDIO, Alignment, EncodedItem, Modality
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.core.plan import EncoderItem

_FEATURES = "input_features"
_FRAMES_OF_POSITION = 2
"""Frames of the spectrogram that become one position: the stride of the second convolution."""

log = get_logger()


class CrossWeights(NamedTuple):
    """The products of the encoder's output that a layer attends to: keys without a bias, values with one."""

    key: torch.Tensor  # [hidden, hidden]
    value: torch.Tensor  # [hidden, hidden]
    value_bias: torch.Tensor  # [hidden]


class WhisperTower:
    """See core.media.Tower. The embeddings are the positions of the encoder's output, as many for every item.

    Args:
        encoder: transformers' encoder, in evaluation mode on the host.
        layers: the products of each layer of the decoder.
        num_heads: number of heads of the decoder's layers.
        alignment: the heads that say when tokens are said.
    """

    is_attended, has_own_thread, uses_mrope, num_deep_layers = True, True, False, 0

    def __init__(self, encoder: Any, layers: Sequence[CrossWeights], num_heads: int, alignment: Alignment) -> None:
        self.alignment = alignment
        self._encoder, self._layers, self._num_heads = encoder, tuple(layers), num_heads
        config = encoder.config
        self._length, self._num_bands = int(config.max_source_positions), int(config.num_mel_bins)
        weights = [*encoder.parameters(), *(tensor for layer in self._layers for tensor in layer)]
        self.modalities: tuple[Modality, ...] = (Modality(AUDIO, self._length),)
        self.num_parameters = sum(each.numel() for each in weights)
        self.size_bytes = sum(each.nbytes for each in weights)
        value_bytes = weights[0].element_size()
        self.embed_bytes = 2 * len(self._layers) * int(config.d_model) * value_bytes
        # One layer: the residual stream, its norm, queries, keys, values and their heads, and the MLP.
        self._activation_bytes: int = self._length * (8 * int(config.d_model) + 2 * int(config.encoder_ffn_dim)) * value_bytes

    @torch.inference_mode()
    def encode(self, item: EncoderItem) -> EncodedItem:
        """See Tower; the result is [layers, 2, heads, N, head_dim]."""
        features = self._read(item)
        try:
            with memory_for("Encoding 30 s of audio", None, "Lower --kv-cache-memory-gib or --gpu-memory-utilization."):
                output = self._encoder(features[None]).last_hidden_state[0]
                keys_values = self._keys_values(output)
        except TetradError:
            raise
        except Exception as error:
            log.warning("media.failed", identifier=item.identifier, exc_info=error)
            raise InternalError(f"The audio cannot be encoded: {one_line(error)}.") from error
        if not bool(torch.isfinite(keys_values).all()):
            raise InternalError("The audio became keys and values that are not finite.")
        return EncodedItem(keys_values)

    def activation_bytes(self, num_embeds: int) -> int:  # noqa: ARG002 - of the protocol
        """See Tower."""
        return self._activation_bytes

    def _keys_values(self, output: torch.Tensor) -> torch.Tensor:
        """Return the keys and values [layers, 2, heads, N, head_dim] of the encoder's output [N, hidden]."""
        found = output.new_empty(len(self._layers), 2, self._num_heads, len(output), output.shape[1] // self._num_heads)
        for layer, weights in zip(found, self._layers, strict=True):
            layer[0] = self._heads(torch.nn.functional.linear(output, weights.key))
            layer[1] = self._heads(torch.nn.functional.linear(output, weights.value, weights.value_bias))
        return found

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(len(rows), self._num_heads, -1).transpose(0, 1)

    def _read(self, item: EncoderItem) -> torch.Tensor:
        """Return the spectrogram [bands, frames] of 30 s of audio; raise InvalidRequest if the item has another shape."""
        array, shape = item.tensors.get(_FEATURES), (self._num_bands, self._length * _FRAMES_OF_POSITION)
        if array is None or array.dtype != np.float32 or array.shape != shape:
            found = "none" if array is None else f"{array.dtype} {list(array.shape)}"
            raise InvalidRequest(f"Tensor {_FEATURES!r} of the audio is {found}; the model takes float32 {list(shape)}.")
        if item.num_embeds != self._length:
            text = f"The audio has num_embeds {item.num_embeds}; the model's encoder has {self._length} positions."
            raise InvalidRequest(text)
        return torch.from_numpy(array.astype(np.float32))  # a copy: the array may be in a message
