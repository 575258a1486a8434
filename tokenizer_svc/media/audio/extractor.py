"""AudioExtractor: decodes an audio file and runs transformers' feature extractor of a model on it, with numpy.

Runs in the audio process, without torch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

from tetrad.tokenizer_svc.media.audio.decoding import Samples, decode_audio
from tetrad.tokenizer_svc.media.child import Tensors

CLASSES = {"WhisperFeatureExtractor": WhisperFeatureExtractor, "Qwen3ASRFeatureExtractor": WhisperFeatureExtractor}
"""Feature extractors by their names in preprocessor_config.json, and one that computes the same without torch."""
_OUTPUTS = ("feature_extractor_type", "processor_class", "return_attention_mask", "n_samples", "nb_max_frames", "n_window")
_MIN_SAMPLES = "min_length"


class AudioExtractor:
    """A model's feature extractor.

    Args:
        settings: values of preprocessor_config.json.
        class_name: name in `CLASSES`.
        mask: name of the tensor that marks the frames of sound; empty: there is none, and one window.
        max_windows: maximum number of windows of an audio; what follows is left out.
        has_windows, frames_multiple: see AudioFamily.
        max_seconds: maximum duration of a file.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        class_name: str,
        mask: str,
        max_windows: int,
        has_windows: bool,
        frames_multiple: int,
        max_seconds: float,
    ) -> None:
        given = {name: value for name, value in settings.items() if name not in (*_OUTPUTS, _MIN_SAMPLES)}
        self._min_samples, self._frames_multiple = int(settings.get(_MIN_SAMPLES, 8000)), frames_multiple
        self._extractor = CLASSES[class_name](**given)
        self._mask, self._max_windows, self._has_windows = mask, max_windows, has_windows
        self._max_seconds = max_seconds

    def settings(self) -> dict[str, Any]:
        """Return the extractor's settings with its defaults, as JSON values."""
        found: dict[str, Any] = self._extractor.to_dict()
        return found

    def process(self, data: bytes, kwargs: Mapping[str, Any]) -> Tensors:
        """Return the features of an audio file: [W, bins, frames] float32, and the marks of sound [W, frames] int64.

        Without windows, both lack the first dimension.

        Raises:
            MediaError: the file is no audio.
        """
        assert not kwargs, "families take no settings of requests"
        its = self._extractor
        samples = decode_audio(data, sampling_rate=its.sampling_rate, max_seconds=self._max_seconds)
        if self._frames_multiple:
            return self._whole(samples)
        windows = self._cut(samples, its.n_samples)
        made = its(windows, sampling_rate=its.sampling_rate, padding="max_length", return_attention_mask=bool(self._mask))
        features = np.ascontiguousarray(made["input_features"], np.float32)
        if not self._mask:
            return {"input_features": features[0]}
        marks = np.ascontiguousarray(made["attention_mask"], np.int64)
        if self._has_windows:
            return {"input_features": features, self._mask: marks}
        return {"input_features": features[0], self._mask: marks[0]}

    def _whole(self, samples: Samples) -> Tensors:
        """Return the features of all samples at once, as Qwen3-ASR's extractor: short audio and a last chunk are filled up."""
        its = self._extractor
        filled = np.pad(samples, (0, max(0, self._min_samples - len(samples))))
        made = its([filled], sampling_rate=its.sampling_rate, padding="longest", truncation=False, return_attention_mask=True)
        features, marks = np.asarray(made["input_features"][0]), np.asarray(made["attention_mask"][0])
        rest = -features.shape[1] % self._frames_multiple
        return {
            "input_features": np.ascontiguousarray(np.pad(features, ((0, 0), (0, rest))), np.float32),
            self._mask: np.ascontiguousarray(np.pad(marks, (0, rest)), np.int64),
        }

    def _cut(self, samples: Samples, size: int) -> list[Samples]:
        starts = range(0, min(len(samples), size * self._max_windows), size)
        return [samples[start : start + size] for start in starts]
