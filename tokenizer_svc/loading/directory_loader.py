"""Directory loader: loads a tokenizer from a Hugging Face model directory.

Called by load.py. tokenizer.json is loaded directly into the Rust library: transformers would import torch if it is installed,
and take seconds. Only a directory without tokenizer.json is loaded by AutoTokenizer, which converts it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from tetrad.services.errors import ModelError, one_line
from tetrad.services.models.model_directory import list_model_files, read_model_json, read_model_text
from tetrad.tokenizer_svc.tokenizer.facts import UNLIMITED, LoadedTokenizer, SpecialTokens

_EXTRA = "extra_special_tokens"
_MORE_TEMPLATES = "additional_chat_templates"
_SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def load_directory(path: Path, model_path: Path) -> LoadedTokenizer:
    """Return the tokenizer in a directory.

    Args:
        path: directory of tokenizer.json and tokenizer_config.json.
        model_path: directory of config.json and the model's other files; if it is not a directory, `path` is used.

    Raises:
        ModelError: a file is missing, is not JSON, or is not a tokenizer.
    """
    tokenizer_config = _load_json(path, "tokenizer_config.json")
    if "added_tokens_decoder" not in tokenizer_config:  # as transformers, which ignores the other file otherwise
        tokenizer_config |= _load_json(path, "special_tokens_map.json")
    facts_path = model_path if model_path.is_dir() else path
    config = _load_json(facts_path, "config.json") or _load_json(path, "config.json")
    generation_config = _load_json(facts_path, "generation_config.json") or _load_json(path, "generation_config.json")
    processor = _load_json(facts_path, "processor_config.json")
    preprocessor = _load_json(facts_path, "preprocessor_config.json")
    special = _special_tokens(tokenizer_config)
    rust = _load_rust(path)
    _mark_special(rust, special, tokenizer_config)
    return LoadedTokenizer(
        rust=rust,
        special=special,
        eos_token_ids=_eos_token_ids(rust, special, generation_config, config),
        chat_templates=_load_chat_templates(path, tokenizer_config, processor),
        max_length=_max_length(tokenizer_config, config),
        config=config,
        generation_config=generation_config,
        image_processor=_image_processor(processor, preprocessor),
        feature_extractor=_feature_extractor(processor, preprocessor),
        video_processor=_load_json(facts_path, "video_preprocessor_config.json"),
        processor=processor,
        prompts=_prompts(_load_json(facts_path, _SENTENCE_TRANSFORMERS) or _load_json(path, _SENTENCE_TRANSFORMERS)),
    )


def _prompts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return sentence-transformers' prompts by name; values that are not texts are ignored."""
    prompts = config.get("prompts")
    named = prompts.items() if isinstance(prompts, dict) else ()
    return {name: text for name, text in named if isinstance(text, str)}


def _image_processor(processor: Mapping[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the image processor: newer models have them in processor_config.json, as in transformers."""
    nested = processor.get("image_processor")
    settings = nested if isinstance(nested, dict) else own
    return settings if any(key.startswith(("image_", "do_resize")) for key in settings) else {}


def _feature_extractor(processor: Mapping[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the feature extractor for audio, which newer models have in processor_config.json."""
    nested = processor.get("feature_extractor")
    settings = nested if isinstance(nested, dict) else own
    return settings if any(key in settings for key in ("sampling_rate", "feature_size")) else {}


def _load_rust(path: Path) -> RustTokenizer:
    text = read_model_text(path, "tokenizer.json")
    if text is None:
        return _convert(path)
    file = path / "tokenizer.json"
    try:
        rust = RustTokenizer.from_str(text)
    except Exception as error:  # the Rust library raises bare Exception
        raise ModelError(f"{file} is not a tokenizer: {one_line(error)}.", field="model") from error
    rust.no_truncation()
    rust.no_padding()
    return rust


def _convert(path: Path) -> RustTokenizer:
    try:
        from transformers import AutoTokenizer

        backend = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False).backend_tokenizer
    except Exception as error:  # transformers raises any error of its converters
        reason = one_line(error)
        raise ModelError(f"{path} has no tokenizer.json, and none can be made of it: {reason}.", field="model") from error
    rust = RustTokenizer.from_str(backend.to_str())
    # Without files, transformers returns a tokenizer that has special tokens alone.
    if len(rust.get_added_tokens_decoder()) >= rust.get_vocab_size(with_added_tokens=True):
        raise ModelError(f"{path} has no tokenizer.json, and no other file with a vocabulary.", field="model")
    return rust


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> SpecialTokens:
    """Return the tokens with a role: all keys that end in "_token", some of which newer files have in an object."""
    extra = tokenizer_config.get(_EXTRA)
    keys = {**tokenizer_config, **(extra if isinstance(extra, dict) else {})}
    texts = {key: text for key, token in keys.items() if key.endswith("_token") and (text := _token_text(token)) is not None}
    bos, eos, pad, unk = (texts.pop(f"{role}_token", None) for role in ("bos", "eos", "pad", "unk"))
    return SpecialTokens(bos, eos, pad, unk, more=texts)


def _mark_special(rust: RustTokenizer, special: SpecialTokens, tokenizer_config: Mapping[str, Any]) -> None:
    """Mark tokens as special that only the configs declare so, as transformers does; no token gets a new id."""
    more = tokenizer_config.get(_EXTRA) or tokenizer_config.get("additional_special_tokens")
    more = list(more.values()) if isinstance(more, dict) else more if isinstance(more, list) else []
    texts = [*special.named().values(), *filter(None, (_token_text(token) for token in more))]
    added = {token.content: token for token in rust.get_added_tokens_decoder().values()}
    missing = [text for text in texts if rust.token_to_id(text) is not None and not (text in added and added[text].special)]
    rust.add_special_tokens([_special(text, added.get(text)) for text in missing])


def _special(text: str, added: AddedToken | None) -> AddedToken:
    """Return a special token; one that the tokenizer has already keeps the white space that it takes with it."""
    if added is None:
        return AddedToken(text, normalized=False, special=True)
    sides = {"lstrip": added.lstrip, "rstrip": added.rstrip}
    return AddedToken(text, normalized=added.normalized, single_word=added.single_word, special=True, **sides)


def _eos_token_ids(
    rust: RustTokenizer, special: SpecialTokens, generation_config: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the ids in generation_config.json, else in config.json, and always the tokenizer's own EOS."""
    listed = generation_config.get("eos_token_id", config.get("eos_token_id"))
    ids = listed if isinstance(listed, list) else [listed]
    own = rust.token_to_id(special.eos) if special.eos is not None else None
    return tuple(dict.fromkeys(token_id for token_id in (own, *ids) if isinstance(token_id, int) and token_id >= 0))


def _load_chat_templates(path: Path, tokenizer_config: Mapping[str, Any], processor: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name; separate files override those of tokenizer_config.json.

    Models that read images have theirs with the processor in chat_template.json or processor_config.json, which come first as
    in vLLM.
    """
    of_processor = _load_json(path, "chat_template.json").get("chat_template") or processor.get("chat_template")
    found = of_processor or tokenizer_config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(found, str):
        templates["default"] = found
    elif isinstance(found, list):
        named = [(entry.get("name"), entry.get("template")) for entry in found if isinstance(entry, dict)]
        templates = {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}
    for file in list_model_files(path, "*.jinja", folder=_MORE_TEMPLATES):
        templates[file.stem] = read_model_text(path / _MORE_TEMPLATES, file.name) or ""
    own = read_model_text(path, "chat_template.jinja")
    return templates if own is None else templates | {"default": own}


def _max_length(tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    text_config = config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    found = [config.get(key, nested.get(key)) for key in _LENGTH_KEYS] + [tokenizer_config.get("model_max_length")]
    return next((int(value) for value in found if isinstance(value, (int, float)) and 0 < value < UNLIMITED), None)


def _token_text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _load_json(directory: Path, name: str) -> dict[str, Any]:
    """Return a JSON object; {} if there is no such file."""
    return read_model_json(directory, name) or {}
