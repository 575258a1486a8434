"""A tiny Whisper model as a directory: random weights, a byte-level tokenizer with Whisper's tokens, a feature extractor."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, processors
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.toy_tokenizer import toy_tokenizer

END, START, PREVIOUS, NO_TIMES = "<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"
LANGUAGES = ("en", "de", "fr", "ja")
TASKS = ("transcribe", "translate")
SPECIALS = (
    END,
    START,
    *(f"<|{name}|>" for name in (*LANGUAGES, "translate", "transcribe")),
    "<|startoflm|>",
    PREVIOUS,
    "<|nospeech|>",
    NO_TIMES,
)
TIMES = tuple(f"<|{index * 0.02:.2f}|>" for index in range(1501))
SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 64, "decoder_ffn_dim": 48}
SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "num_mel_bins": 80, "max_target_positions": 448}


def save_whisper(directory: Path, *, seed: int = 0, num_seconds: int = 30, **sizes: int) -> WhisperForConditionalGeneration:
    """Write a model of audio of `num_seconds`, and return transformers' own; `sizes` replace those of its config."""
    tokenizer = whisper_tokenizer()
    ids = {name: tokenizer.token_to_id(name) for name in SPECIALS}
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_source_positions=50 * num_seconds,
        decoder_start_token_id=ids[START],
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        pad_token_id=ids[END],
        begin_suppress_tokens=None,
        **SIZES | sizes,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # as large as in trained models, so that audio and tokens change the output
            torch.nn.init.normal_(parameter, std=0.02 if name.endswith("bias") else 0.3)
    model.save_pretrained(directory)
    languages = {f"<|{language}|>": ids[f"<|{language}|>"] for language in LANGUAGES}
    files = {
        "generation_config.json": {
            "eos_token_id": ids[END],
            "decoder_start_token_id": ids[START],
            "is_multilingual": True,
            "lang_to_id": languages,
            "task_to_id": {task: ids[f"<|{task}|>"] for task in TASKS},
            "no_timestamps_token_id": ids[NO_TIMES],
            "alignment_heads": [[1, 0], [2, 1], [0, 1]],
        },
        "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", "eos_token": END, "bos_token": END, "unk_token": END},
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": config.num_mel_bins,
            "sampling_rate": 16_000,
            "hop_length": 160,
            "n_fft": 400,
            "chunk_length": num_seconds,
            "nb_max_frames": 100 * num_seconds,
            "n_samples": 16_000 * num_seconds,
        },
    }
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values))
    return model


def whisper_tokenizer() -> Tokenizer:
    """Return a tokenizer that writes Whisper's own tokens around a text with special tokens."""
    tokenizer = Tokenizer.from_str(toy_tokenizer())
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in TIMES])
    around = [(each, tokenizer.token_to_id(each)) for each in (START, NO_TIMES, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} {NO_TIMES} $A {END}", special_tokens=around)
    return tokenizer
