"""Prompts with audio as the tokenizer service sends them: token ids, spans, and the features of each audio."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.audio_reference import AudioReference, PreparedAudio, features_of
from tests.sounds import Samples
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan


@dataclass(frozen=True)
class AudioPrompt:
    """A prompt; `items` are its audios, and `spans` their places."""

    prepared: PreparedAudio
    spans: tuple[MediaSpan, ...]
    items: tuple[EncoderItem, ...]

    @property
    def token_ids(self) -> list[int]:
        return self.prepared.token_ids


def audio_prompt(reference: AudioReference, parts: Sequence[str | Samples]) -> AudioPrompt:
    """Return the prompt of a message of these texts and audios."""
    prepared = reference.prepare(parts)
    places = np.flatnonzero(np.array(prepared.token_ids) == reference.model.config.audio_token_id)
    spans, items = [], []
    for index, count in enumerate(prepared.num_embeds):
        tensors = features_of(prepared, index, reference.model.config.model_type)
        identifier = f"{hash(tensors['input_features'].tobytes()):x}"
        items.append(EncoderItem(identifier, "audio", tensors, count))
        spans.append(MediaSpan(identifier, "audio", int(places[0]), count, None, count, None))
        places = places[count:]
    assert not len(places)
    return AudioPrompt(prepared, tuple(spans), tuple(items))
