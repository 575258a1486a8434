"""A tiny model that reads audio, as a directory: random weights, a byte-level tokenizer, a feature extractor, a template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tests.toy_tokenizer import EOS_IDS, SPECIALS, toy_tokenizer
from tests.worker_svc.families.tiny_models import SIZES

CHUNK_S = 2
"""Seconds of a window of the feature extractor: 200 frames."""
_FRAMES = 100 * CHUNK_S
_WHISPER = {
    "num_mel_bins": 128,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "max_source_positions": _FRAMES // 2,
}
_GLM = {
    "num_mel_bins": 128,
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": _FRAMES // 2,
}
_QWEN3 = {"audio_bos_token": "<|audio_start|>", "audio_token": "<|audio_pad|>", "audio_eos_token": "<|audio_end|>"}


@dataclass(frozen=True)
class AudioKind:
    """What a kind of model has besides its weights.

    Attributes:
        architecture: transformers' class of the model.
        text_type: model_type of the text model.
        audio: config of the audio model.
        specials: special tokens in the order of their ids, which follow those of the toy tokenizer.
        mark: the one of these that embeddings replace.
        audio_text: what the template writes for an audio.
        processor: class of the processor, in transformers.
        mask: name of the tensor that marks the frames of sound.
        processor_config: values of processor_config.json.
        extractor: class of the feature extractor.
        tokenizer_config: further values of tokenizer_config.json.
    """

    architecture: str
    text_type: str
    audio: Mapping[str, Any]
    specials: tuple[str, ...]
    mark: str
    audio_text: str
    processor: str
    mask: str
    processor_config: Mapping[str, Any] = field(default_factory=dict)
    extractor: str = "WhisperFeatureExtractor"
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)


AUDIO_KINDS: Mapping[str, AudioKind] = {
    "qwen2_audio": AudioKind(
        "Qwen2AudioForConditionalGeneration",
        "qwen2",
        _WHISPER,
        ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"),
        "<|AUDIO|>",
        "Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n",
        "Qwen2AudioProcessor",
        "feature_attention_mask",
    ),
    "audioflamingo3": AudioKind(
        "AudioFlamingo3ForConditionalGeneration",
        "qwen2",
        _WHISPER,
        ("<sound>",),
        "<sound>",
        "<sound>",
        "AudioFlamingo3Processor",
        "input_features_mask",
        {"max_audio_len": 8},
    ),
    "glmasr": AudioKind(
        "GlmAsrForConditionalGeneration",
        "llama",
        _GLM,
        ("<|begin_of_audio|>", "<|pad|>", "<|end_of_audio|>"),
        "<|pad|>",
        "<|begin_of_audio|><|pad|><|end_of_audio|>",
        "GlmAsrProcessor",
        "input_features_mask",
        {"max_audio_len": 6},
    ),
    "qwen3_asr": AudioKind(
        "Qwen3ASRForConditionalGeneration",
        "qwen3",
        {name: value for name, value in _WHISPER.items() if name != "max_source_positions"}
        | {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8, "output_dim": SIZES["hidden_size"]},
        tuple(_QWEN3.values()),
        "<|audio_pad|>",
        "<|audio_start|><|audio_pad|><|audio_end|>",
        "Qwen3ASRProcessor",
        "input_features_mask",
        extractor="Qwen3ASRFeatureExtractor",
        tokenizer_config={"extra_special_tokens": _QWEN3},
    ),
}
"""Kind by model_type, of every family whose audio is read."""


def save_audio_model(directory: Path, name: str) -> torch.nn.Module:
    """Write a model of one of `AUDIO_KINDS`, with tokenizer, feature extractor and template; return transformers' own."""
    import transformers
    from transformers import AutoConfig

    its = AUDIO_KINDS[name]
    tokenizer = Tokenizer.from_str(toy_tokenizer())
    tokenizer.add_special_tokens(list(its.specials))
    mark_id = tokenizer.token_to_id(its.mark)
    torch.manual_seed(1)
    text = {**SIZES, "model_type": its.text_type}
    config = AutoConfig.for_model(name, text_config=text, audio_config=dict(its.audio), audio_token_id=mark_id)
    model = getattr(transformers, its.architecture)._from_config(config, attn_implementation="eager")
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1 and "language_model" not in key and "lm_head" not in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(directory)
    texts = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _template(its.audio_text)}
    texts |= {"eos_token": SPECIALS[0], "pad_token": SPECIALS[0]}
    files = {
        "generation_config.json": {"eos_token_id": list(EOS_IDS)},
        "tokenizer_config.json": texts | dict(its.tokenizer_config),
        "preprocessor_config.json": {
            "feature_extractor_type": its.extractor,
            "feature_size": 128,
            "chunk_length": CHUNK_S,
            "return_attention_mask": True,
        },
        "processor_config.json": {"processor_class": its.processor, **its.processor_config},
    }
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    for file, values in files.items():
        (directory / file).write_text(json.dumps(values))
    return model


def _template(audio: str) -> str:
    """Return a chat template that writes text and audio of a message in their order."""
    part = "{% if part.type == 'audio' %}" + audio + "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    parts = "{% for part in message.content %}" + part + "{% endfor %}"
    content = "{% if message.content is string %}{{ message.content }}{% else %}" + parts + "{% endif %}"
    turns = "{% for message in messages %}{{ message.role }}: " + content + "\n{% endfor %}"
    return turns + "{% if add_generation_prompt %}assistant: {% endif %}"
