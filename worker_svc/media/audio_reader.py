"""Audio reader: reads the spectrograms of audio for a tower, one window at a time, and knows how large they become.

The calls are those of transformers' `get_audio_features`. Loads nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.media import AUDIO, Modality
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.reader import Call, Encoded, Inputs

_FEATURES = "input_features"
_STRIDE = 2
"""Frames of a spectrogram that become one position of the audio model: the stride of its second convolution."""
_FRAMES_OF_SECOND = 100


class AudioKind(NamedTuple):
    """How an architecture's audio model is called.

    Attributes:
        mask: name of the tensor that marks the frames of sound among those of padding.
        max_seconds: returns the maximum duration from processor_config.json; 0: one window.
        frames_per_embed: frames of a window that become one embedding, rounded down.
        window: returns the number of frames that are encoded together, from the config of the audio model.
        step: returns the numbers of frames that a shorter last window may have a multiple of; 0: all windows are whole.
        prepare: changes transformers' module once, after its weights are in it.
    """

    mask: str
    max_seconds: Callable[[Mapping[str, Any]], int]
    frames_per_embed: float
    window: Callable[[Any], int]
    step: Callable[[Any], int] = lambda _: 0
    prepare: Callable[[Any], object] = lambda _: None


class AudioReader:
    """See ItemReader.

    Args:
        kind: how the architecture reads items.
        config: transformers' config of the model.
        extractor: settings of the model's feature extractor.
        processor: values of processor_config.json.
    """

    uses_mrope, num_deep_layers = False, 0

    def __init__(self, kind: AudioKind, config: Any, extractor: Mapping[str, Any], processor: Mapping[str, Any]) -> None:
        audio = config.audio_config
        self._mask, self._num_bins = kind.mask, int(audio.num_mel_bins)
        self._num_frames, self._step = kind.window(audio), kind.step(audio)
        self._size, self._inner = int(audio.hidden_size), int(audio.intermediate_size)
        self._channels = int(getattr(audio, "downsample_hidden_size", 0))
        most_frames = max(self._num_frames, kind.max_seconds(processor) * _FRAMES_OF_SECOND)
        if not self._step:  # whole windows of the feature extractor
            most_frames = max(1, kind.max_seconds(processor) // int(extractor.get("chunk_length", 30))) * self._num_frames
        largest = int(most_frames / kind.frames_per_embed)
        self.modalities: tuple[Modality, ...] = (Modality(AUDIO, largest),)

    def encode(self, item: EncoderItem, call: Call) -> Encoded:
        """See ItemReader."""
        return torch.cat([call("get_audio_features", window)[0] for window in self._windows(item)]), None

    def activation_values(self, num_embeds: int) -> int:  # noqa: ARG002 - every item is encoded in windows of one size
        """See ItemReader: for a window, the output of the convolutions, and the activations of one layer."""
        convolved = self._num_frames * (self._num_bins + 2 * self._size)
        convolved += self._num_frames * self._num_bins * self._channels // 2  # the output of a convolution, and its activation
        return convolved + self._num_frames // _STRIDE * (12 * self._size + 2 * self._inner)

    def _windows(self, item: EncoderItem) -> Iterator[Inputs]:
        """Yield the arguments for each window: a spectrogram [1, bins, frames], and marks of sound [1, frames]."""
        features, marks = item.tensors.get(_FEATURES), item.tensors.get(self._mask)
        if features is None or marks is None:
            text = f"A media item needs the tensors {_FEATURES!r} and {self._mask!r}; it has "
            raise InvalidRequest(f"{text}{', '.join(sorted(item.tensors)) or 'none'}.")
        features = features[None] if features.ndim == len(("bins", "frames")) else features
        marks = marks[None] if marks.ndim == 1 else marks
        num_frames = features.shape[-1] if self._step and features.shape[-1] % self._step == 0 else self._num_frames
        shape = (len(marks), self._num_bins, num_frames)
        if features.dtype != np.float32 or features.shape != shape or marks.shape != (len(marks), num_frames):
            raise InvalidRequest(
                f"The audio is {features.dtype} {list(features.shape)} with marks {list(marks.shape)}; the model takes windows "
                f"of float32 {[self._num_bins, self._num_frames]}."
            )
        places = [
            (window, slice(start, start + self._num_frames))
            for window in range(len(marks))
            for start in range(0, num_frames, self._num_frames)
        ]
        for place, part in places:
            window, marked = features[place, :, part], marks[place, part]
            # Copies: the arrays may be in a message.
            yield {
                _FEATURES: torch.from_numpy(window[None].astype(np.float32)),
                self._mask: torch.from_numpy(marked[None].astype(np.int64)),
            }


def _add_qwen2_audio_features(module: Any) -> None:
    """Give Qwen2-Audio's module the method that newer models have; the steps are those of transformers' `forward`."""
    module.get_audio_features = partial(_qwen2_audio_features, module)


def _qwen2_audio_features(module: Any, input_features: torch.Tensor, feature_attention_mask: torch.Tensor) -> Any:
    from transformers.masking_utils import create_bidirectional_mask

    tower = module.audio_tower
    num_frames, num_embeds = tower._get_feat_extract_output_lengths(feature_attention_mask.sum(-1))  # noqa: SLF001 - its forward
    num_positions = (input_features.shape[-1] - 2) // 2 + 1
    mask = create_bidirectional_mask(
        config=tower.config,
        inputs_embeds=input_features.new_zeros(len(input_features), num_positions, 1),
        attention_mask=(torch.arange(num_positions, device=num_frames.device)[None] < num_frames[:, None]).long(),
    )
    rows = module.multi_modal_projector(tower(input_features, attention_mask=mask).last_hidden_state)
    return SimpleNamespace(pooler_output=rows[0, : int(num_embeds[0])])


def _of_positions(audio: Any) -> int:
    return _STRIDE * int(getattr(audio, "max_source_positions", 0) or audio.max_position_embeddings)


def _single(_: Mapping[str, Any]) -> int:
    return 0


def _listed(default: int) -> Callable[[Mapping[str, Any]], int]:
    return lambda processor: int(processor.get("max_audio_len") or default)


AUDIO_KINDS: Mapping[str, AudioKind] = {
    "AudioFlamingo3ForConditionalGeneration": AudioKind("input_features_mask", _listed(600), 4, _of_positions),
    "GlmAsrForConditionalGeneration": AudioKind("input_features_mask", _listed(655), 8, _of_positions),
    "Qwen2AudioForConditionalGeneration": AudioKind(
        "feature_attention_mask", _single, 4, _of_positions, prepare=_add_qwen2_audio_features
    ),
    # Its attention spans windows of so many frames, each of whole chunks.
    "Qwen3ASRForConditionalGeneration": AudioKind(
        "input_features_mask",
        _listed(600),
        100 / 13,
        window=lambda audio: int(audio.n_window_infer),
        step=lambda audio: 2 * int(audio.n_window),
    ),
}
"""Architecture -> kind of its audio model."""
