"""Audio families: how the models of each family cut audio, and how they write it in a prompt.

The rules follow transformers' processors (models/*/processing_*.py), so that prompts have the same tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.tokenizer_svc.media.items import Expansion, MediaError, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles

_MARK_KEYS = ("audio_token_id", "audio_token_index")
_CHUNK_FRAMES, _CHUNK_EMBEDS = 100, 13
"""Frames of a chunk of Qwen3-ASR, and the embeddings that it becomes."""
_MOST_SECONDS = 600


class AudioModel(ModelFiles):
    """The facts that a family's rules read.

    Args:
        tokenizer: the model's tokenizer.
        settings: settings of the feature extractor, with its defaults.

    Attributes:
        settings: as given.
        mark_id: id of the token that an embedding of audio replaces.
        mark: its text.

    Raises ModelError if config.json names no such token.
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(tokenizer)
        self.settings = settings
        self.mark_id, self.mark = self.mark_of(_MARK_KEYS)


@dataclass(frozen=True)
class AudioFamily:
    """The rules of a family.

    Attributes:
        mask: name of the tensor that marks the frames of sound among those of padding.
        num_embeds: returns the number of embeddings of an audio; it gets the number of frames of sound.
        max_windows: returns the number of windows of the longest audio, each of the extractor's `chunk_length` seconds. Longer
            audio is cut behind them, as in transformers.
        has_windows: the features have a first dimension of windows; otherwise there is one window.
        frames_multiple: the number of frames is filled up to a multiple of it, without windows; 0: to whole windows.
        message_text: returns an item's text in a message for templates that read only texts; it gets the mark.
    """

    mask: str
    num_embeds: Callable[[int], int]
    max_windows: Callable[[ModelFiles, int], int]
    has_windows: bool
    message_text: Callable[[str], str]
    frames_multiple: int = 0

    def expand(self, model: AudioModel, item: ProcessedItem) -> Expansion:
        """Return what replaces the placeholder of an audio. Raises MediaError if it becomes no embedding."""
        num_frames = sum(item.integers(self.mask))
        num_embeds = self.num_embeds(num_frames)
        if not num_embeds:
            raise MediaError(f"the audio ({num_frames} frames) is too short to be represented inside the model")
        return Expansion(model.mark, 1, num_embeds)

    def max_embeds(self, model: AudioModel) -> int:
        """Return the number of embeddings of the longest audio."""
        frames: int = model.settings["nb_max_frames"]
        return self.num_embeds(frames * self.max_windows(model, model.settings["chunk_length"]))


def _pooled(num_frames: int) -> int:
    """Return the number of positions behind a convolution of stride 2 and a mean of pairs."""
    return max(0, ((num_frames - 1) // 2 - 1) // 2 + 1)


def _merged(num_frames: int) -> int:
    """Return the number of groups of 4 positions behind a convolution of stride 2."""
    return max(0, ((num_frames - 1) // 2 + 1) // 4)


def _in_chunks(num_frames: int) -> int:
    """Return the number of positions behind three convolutions of stride 2 on each chunk of 100 frames."""
    rest = num_frames % _CHUNK_FRAMES
    for _ in range(3):
        rest = (rest + 1) // 2
    return rest + num_frames // _CHUNK_FRAMES * _CHUNK_EMBEDS


def _one_window(_: ModelFiles, __: int) -> int:
    return 1


def _windows_of(default: int) -> Callable[[ModelFiles, int], int]:
    """Return a function that computes the number of windows from processor_config.json's `max_audio_len`, in seconds."""
    return lambda files, chunk_length: max(1, int(files.processor.get("max_audio_len") or default) // chunk_length)


def _between_audio_marks(mark: str) -> str:
    return f"<|audio_bos|>{mark}<|audio_eos|>"


def _between_start_and_end(mark: str) -> str:
    return f"<|audio_start|>{mark}<|audio_end|>"


def _mark_alone(mark: str) -> str:
    return mark


def _between_begin_and_end(mark: str) -> str:
    return f"<|begin_of_audio|>{mark}<|end_of_audio|>"


AUDIO_FAMILIES: Mapping[str, AudioFamily] = {
    "audioflamingo3": AudioFamily("input_features_mask", _pooled, _windows_of(600), True, _mark_alone),
    "glmasr": AudioFamily("input_features_mask", _merged, _windows_of(655), True, _between_begin_and_end),
    "qwen2_audio": AudioFamily("feature_attention_mask", _pooled, _one_window, False, _between_audio_marks),
    "qwen3_asr": AudioFamily(
        "input_features_mask", _in_chunks, _windows_of(_MOST_SECONDS), False, _between_start_and_end, _CHUNK_FRAMES
    ),
}
"""Families by model_type."""
