"""Loading: finds a model by name and loads its Tokenizer. Called once at start, in a thread, since it reads and may
download files.
"""

import dataclasses
import os
from pathlib import Path

from tetrad.services.errors import ModelError, NotFound, one_line
from tetrad.services.hub.model_files import builtin_generation_config, resolve_model
from tetrad.services.models.gguf_parts import gguf_part_paths
from tetrad.tokenizer_svc.chat.messages import ChatError
from tetrad.tokenizer_svc.chat.template import CompiledTemplate
from tetrad.tokenizer_svc.loading.directory_loader import load_directory
from tetrad.tokenizer_svc.loading.gguf_loader import load_gguf
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer
from tetrad.tokenizer_svc.tokenizer.rust_errors import RustErrors
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_MAX_VOCAB_SIZE = 1 << 22
"""Maximum size of a vocabulary, the same as in the worker; the largest known vocabularies have 262,144 tokens."""


def load_tokenizer(model: str, tokenizer: str | None = None, *, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer of a model.

    Args:
        model: built-in name, directory, .gguf file or Hugging Face id.
        tokenizer: the model with the tokenizer, in the same forms; None: the model itself.
        chat_template: template that replaces the model's own: a file, or the template itself.

    Raises:
        NotFound: there is no such model, tokenizer or template file.
        ModelError: the files are broken or of an unsupported kind, or the template is not valid.
    """
    # One thread per text: the service's own pool encodes several texts at the same time.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    model_path = resolve_model(model, with_weights=False)
    path = model_path if tokenizer is None else resolve_model(tokenizer, with_weights=False)
    with RustErrors(lambda reason: ModelError(f"{path} has a broken tokenizer: {reason}.", field="model")):
        loaded = _load(path, model_path)
        if not loaded.generation_config:
            loaded = dataclasses.replace(loaded, release_config=builtin_generation_config(model_path))
        if chat_template is not None:
            template = _load_template(chat_template)
            loaded = dataclasses.replace(loaded, chat_templates={"default": template}, pair_template=template)
        return _check(Tokenizer(loaded), path)


def _check(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """Return the tokenizer if its ids are within the limit, include the end-of-text tokens, and it can encode and decode."""
    if tokenizer.vocab_size > _MAX_VOCAB_SIZE:
        largest = tokenizer.vocab_size - 1
        raise ModelError(f"{path} has the token id {largest}; ids must be below {_MAX_VOCAB_SIZE}.", field="model")
    eos = max(tokenizer.facts.eos_token_ids, default=-1)
    if eos >= tokenizer.vocab_size:
        text = (
            f"{path} has ids below {tokenizer.vocab_size}, but the model ends its texts with {eos}: another model's tokenizer?"
        )
        raise ModelError(text, field="tokenizer")
    try:
        tokenizer.decode(tokenizer.encode("Hello world"))
    except Exception as error:  # the Rust library raises various errors for a file that contradicts itself
        raise ModelError(f"{path} has a tokenizer that cannot encode: {one_line(error)}.", field="model") from error
    return tokenizer


def _load(path: Path, model_path: Path) -> LoadedTokenizer:
    if path.is_dir():
        return load_directory(path, model_path)
    if path.name == "tokenizer.json":
        return load_directory(path.parent, model_path)
    try:
        return load_gguf(gguf_part_paths(path)[0])
    except ModelError:
        raise
    except Exception as error:  # the Rust library raises bare Exception for vocabularies that contradict themselves
        raise ModelError(f"{path} has a broken tokenizer section: {one_line(error)}.", field="model") from error


def _load_template(given: str) -> str:
    """Return the text of a template or a template file; raises ModelError if it is not valid.

    As in vLLM, a value with a brace or a line break is a template, and ``\\n`` in it is a line break.
    """
    is_text = "{" in given or "\n" in given
    name = "The given template" if is_text else given
    try:
        source = given.replace("\\n", "\n") if is_text else Path(given).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise NotFound(f"The chat template {given} cannot be read: {error}.", field="chat_template") from error
    try:
        return CompiledTemplate(source).source
    except ChatError as error:
        raise ModelError(f"{name}: {error.message}", field="chat_template") from error
