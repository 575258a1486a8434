"""Whisper's audio: 30 seconds, which the encoder reads; they take no token of the prompt.

Shorter audio is padded with silence, and longer audio is cut behind them, as in transformers. Recordings of any length are
transcribed piece by piece (speech/).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.media.items import NO_MARKS, Expansion, ProcessedItem
from tetrad.tokenizer_svc.media.kinds import MediaRules
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

MODEL_TYPE = "whisper"


def whisper_rules(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> MediaRules:
    """Return how a Whisper model takes audio. Raises ModelError if its files contradict each other."""
    config = ModelFiles(tokenizer).config
    start_id, num_positions = config.get("decoder_start_token_id"), int(config["max_source_positions"])
    if not isinstance(start_id, int) or not 0 <= start_id < tokenizer.vocab_size:
        raise ModelError(
            f"config.json has decoder_start_token_id {start_id!r}, which is no id of the tokenizer.", field="model"
        )
    bands, frames = config["num_mel_bins"], 2 * num_positions
    if (settings["feature_size"], settings["nb_max_frames"]) != (bands, frames):
        text = f"preprocessor_config.json makes {settings['feature_size']} bands of {settings['nb_max_frames']} frames"
        raise ModelError(f"{text}; the model of config.json reads {bands} of {frames}.", field="model")
    return MediaRules(
        modality="audio",
        settings=settings,
        marks=NO_MARKS,
        message_text="",
        max_embeds=num_positions,
        expand=partial(_expand, num_positions),
        start_id=start_id,
    )


def _expand(num_positions: int, _: ProcessedItem) -> Expansion:
    return Expansion("", 1, num_positions)
