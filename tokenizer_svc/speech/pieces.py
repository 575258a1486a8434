"""PieceExtractor: decodes a recording, cuts it, and runs the model's feature extractor on each piece.

Runs in the speech process, without torch.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

from tetrad.tokenizer_svc.media.audio.decoding import decode_audio
from tetrad.tokenizer_svc.media.child import Tensors
from tetrad.tokenizer_svc.speech.cutting import BOUNDS, cut

_OUTPUTS = ("feature_extractor_type", "processor_class", "return_attention_mask", "n_samples", "nb_max_frames")
"""Values of preprocessor_config.json that follow from others, or are not the extractor's."""


class PieceExtractor:
    """A model's feature extractor, for whole recordings.

    Args:
        settings: values of preprocessor_config.json.
        max_seconds: maximum duration of a file.
        mask: name of the tensor that marks the frames of sound; empty: the model reads no such tensor.
    """

    def __init__(self, settings: Mapping[str, Any], *, max_seconds: float, mask: str) -> None:
        given = {name: value for name, value in settings.items() if name not in _OUTPUTS}
        self._extractor = WhisperFeatureExtractor(**given)
        self._max_seconds, self._mask = max_seconds, mask

    def settings(self) -> dict[str, Any]:
        """Return the extractor's settings with its defaults, as JSON values."""
        found: dict[str, Any] = self._extractor.to_dict()
        return found

    def process(self, data: bytes, kwargs: Mapping[str, Any]) -> Tensors:
        """Return the features of all pieces [pieces, bins, frames] float32, and where pieces begin [pieces + 1] int64.

        Raises:
            MediaError: the file cannot be read, or is too long.
        """
        assert not kwargs, "speech takes no settings of requests"
        its = self._extractor
        samples = decode_audio(data, sampling_rate=its.sampling_rate, max_seconds=self._max_seconds)
        bounds = cut(samples, its.sampling_rate, its.chunk_length)
        pieces = [samples[start:end] for start, end in itertools.pairwise(bounds)]
        made = its(pieces, sampling_rate=its.sampling_rate, padding="max_length", return_attention_mask=bool(self._mask))
        tensors: Tensors = {BOUNDS: np.array(bounds, np.int64)}
        tensors["input_features"] = np.ascontiguousarray(made["input_features"], np.float32)
        if self._mask:
            tensors[self._mask] = np.ascontiguousarray(made["attention_mask"], np.int64)
        return tensors
