"""Writes the tiny models of the walk, with their adapters and draft models. A model is written once in a test run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.audio_files import save_audio_model
from tests.combinations.stack import Sizes
from tests.e2e.speech_reference import save_talkative_whisper
from tests.e2e.test_prompt_adapters import save_prompt_adapter
from tests.e2e.tiny_model import save_tiny_model, save_tokenizer
from tests.eagle3_files import save_eagle3
from tests.lora_files import save_lora
from tests.mtp_files import save_mtp, save_qwen_mtp
from tests.toy_tokenizer import SPECIALS
from tests.vision_files import save_vision_model
from tests.worker_svc.families.tiny_models import save_family
from tetrad import LoRARequest

_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools\n{% endif %}{% if add_generation_prompt %}bot: {% endif %}"
)
_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
_NATIVE_TYPES = ("float32", "float32", "float16", "int8")
_LOOKUPS = (
    _NGRAM,
    _NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 6, 1]]},
    _NGRAM | {"disable_by_batch_size": 5},
    {"method": "suffix"},
    {"method": "suffix", "suffix_decoding_max_cached_requests": 20},
)
# A model that pools has one rank.
_PREFILL_SIZES = (Sizes(2, prefill_cores=1), Sizes(3, prefill_cores=1), Sizes(3, prefill_cores=2))
_SIZES = (Sizes(2, tokenizers=2), Sizes(shards=2), Sizes(stages=2), Sizes(2, stages=2))
_SHARED = Sizes(2, shares_experts=True)


@dataclass(frozen=True)
class Checkpoint:
    """A model in a directory.

    Attributes:
        adapters: LoRA and prompt adapters that requests may name.
        speculative_configs: what may propose drafts for it.
        modalities: media that chats may have.
        hidden_size: of embeddings.
        embeds: whether it also makes embeddings.
        num_groups: of layers with KV blocks of their own.
        kv_cache_dtypes: types of keys and values that it can have.
        engine: settings of the engine core that it needs.
        sizes: numbers of services that can serve it, beside one of each.
        transcribes: whether it has an encoder and a decoder, and writes what is said.
    """

    directory: Path
    adapters: tuple[LoRARequest, ...]
    speculative_configs: tuple[Mapping[str, Any], ...]
    modalities: tuple[str, ...] = ()
    hidden_size: int = 64
    embeds: bool = False
    num_groups: int = 1
    kv_cache_dtypes: tuple[str, ...] = ("float32",)
    engine: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[Sizes, ...] = _SIZES
    transcribes: bool = False


def _llama(directory: Path) -> Checkpoint:
    save_tiny_model(directory)
    (directory / "small").mkdir()
    save_tiny_model(directory / "small", num_hidden_layers=1)
    save_eagle3(directory / "eagle", vocab_size=272, eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    drafters = [("draft_model", "small"), ("draft_model", "."), ("eagle3", "eagle")]
    configs = [{"method": way, "num_speculative_tokens": 3, "model": str(directory / model)} for way, model in drafters]
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    save_lora(directory / "1", reference, "q_proj|up_proj|lm_head", seed=1)
    save_lora(directory / "2", reference, "k_proj|o_proj|down_proj", rank=4, seed=2)
    save_prompt_adapter(directory / "3", 64, seed=3, rows=5)
    return Checkpoint(
        directory,
        _adapters(directory, 3),
        (*_LOOKUPS, *configs),
        kv_cache_dtypes=_NATIVE_TYPES,
        sizes=(*_SIZES, *_PREFILL_SIZES),
    )


def _embedding(directory: Path) -> Checkpoint:
    """Generates and embeds."""
    llama = _llama(directory)
    engine = {"runner": "generate", "convert": "embed"}
    return replace(llama, speculative_configs=_LOOKUPS, embeds=True, engine=engine, sizes=_SIZES[:1])


def _windows(directory: Path) -> Checkpoint:
    """Groups of layers with and without a window."""
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    windows = {"sliding_window": 24, "use_sliding_window": True, "layer_types": types, "num_hidden_layers": 5}
    save_tiny_model(directory, architectures=["Qwen2ForCausalLM"], model_type="qwen2", **windows)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    save_lora(directory / "1", reference, "q_proj|up_proj", seed=1)
    return Checkpoint(directory, _adapters(directory, 1), _LOOKUPS, num_groups=6, kv_cache_dtypes=_NATIVE_TYPES)


def _mtp(kind: str) -> Callable[[Path], Checkpoint]:
    def save(directory: Path) -> Checkpoint:
        is_qwen = kind.startswith("qwen")
        reference, _ = save_qwen_mtp(directory, kind) if is_qwen else save_mtp(directory, kind)
        save_tokenizer(directory)
        save_lora(directory / "1", reference, r"model\.layers\.[0-2]\..*(o_proj)", seed=1)
        config = {"method": "mtp", "num_speculative_tokens": 2}
        return Checkpoint(directory, _adapters(directory, 1), (*_LOOKUPS, config, config), num_groups=6)

    return save


def _family(name: str, modules: str, sizes: tuple[Sizes, ...] = _SIZES) -> Callable[[Path], Checkpoint]:
    def save(directory: Path) -> Checkpoint:
        reference = save_family(directory, name)
        save_tokenizer(directory)
        save_lora(directory / "1", reference, modules, seed=1)
        return Checkpoint(directory, _adapters(directory, 1), _LOOKUPS, num_groups=6, sizes=sizes)

    return save


def _vision(kind: str, *modalities: str) -> Callable[[Path], Checkpoint]:
    def save(directory: Path) -> Checkpoint:
        reference = save_vision_model(directory, kind)
        save_lora(directory / "1", reference, r".*(language|text)_model.*(q_proj|up_proj)", seed=1)
        sizes = _SIZES if kind == "qwen3_5" else (*_SIZES, *_PREFILL_SIZES)  # its states are not moved
        return Checkpoint(directory, _adapters(directory, 1), _LOOKUPS, modalities=modalities, num_groups=6, sizes=sizes)

    return save


def _audio(directory: Path) -> Checkpoint:
    reference = save_audio_model(directory, "qwen2_audio")
    save_lora(directory / "1", reference, r".*language_model.*(q_proj|up_proj)", seed=1)
    return Checkpoint(directory, _adapters(directory, 1), _LOOKUPS, modalities=("audio",), num_groups=6)


def _whisper(directory: Path) -> Checkpoint:
    """Reads 2 s at once: most recordings have several pieces."""
    save_talkative_whisper(directory, num_seconds=2)
    return Checkpoint(directory, (), _LOOKUPS, modalities=("audio",), sizes=_SIZES[:1], transcribes=True)


def _adapters(directory: Path, count: int) -> tuple[LoRARequest, ...]:
    return tuple(LoRARequest(f"adapter-{number}", number, str(directory / str(number))) for number in range(1, count + 1))


MAKERS: Mapping[str, Callable[[Path], Checkpoint]] = {
    "llama": _llama,
    "llama that embeds": _embedding,
    "windows": _windows,
    "qwen3_next with mtp": _mtp("qwen3_next"),
    "deepseek with mtp": _mtp("deepseek"),
    "lfm2": _family("lfm2", "q_proj|v_proj"),
    "granite_hybrid": _family("granite_hybrid", "q_proj|o_proj"),
    "mamba2": _family("mamba2", "in_proj|out_proj"),
    "gpt_oss": _family("gpt_oss", "q_proj|o_proj", (*_SIZES, _SHARED, _SHARED)),
    "gemma3": _family("gemma3", "q_proj|down_proj"),
    "smolvlm": _vision("smolvlm", "image"),
    "qwen3_5 with images": _vision("qwen3_5", "image"),
    "qwen2_5_vl with videos": _vision("qwen2_5_vl", "image", "video"),
    "qwen2_audio": _audio,
    "whisper": _whisper,
}
"""Name -> writes the model. In their order: keys alone, windows, states, latent keys and experts, media, speech."""


class Checkpoints:
    """The models, made when they are first used.

    Args:
        directory: where.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Checkpoint] = {}

    def __getitem__(self, name: str) -> Checkpoint:
        if name not in self._made:
            path = self._directory / name.replace(" ", "-")
            path.mkdir()
            self._made[name] = MAKERS[name](path)
            if not self._made[name].modalities:
                config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0], "chat_template": _TEMPLATE}
                (path / "tokenizer_config.json").write_text(json.dumps(config))
        return self._made[name]
