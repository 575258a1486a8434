"""`tetrad show`: describes a model and the memory that it needs. Downloads at most config.json."""

import json
from typing import Any

from tetrad.cli.models.description import ModelDescription, why_not_here
from tetrad.cli.models.memory import KV_TYPES, WEIGHT_TYPES, encoded_bytes, kv_need
from tetrad.cli.models.named_model import describe_model
from tetrad.cli.models.options import add_device, add_json, add_revision
from tetrad.cli.models.texts import binary_size, count, decimal_size, table
from tetrad.cli.options import new_parser
from tetrad.services.errors import ModelError

_SHOWN = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "longest context",
}
"""Key of config.json -> its label in the output."""


def run(arguments: list[str]) -> int:
    """Print the facts of a model."""
    parser = new_parser(
        "show",
        "Show what a model is: family, parameters, configuration, whether it runs here, and the memory that weights, keys and "
        "values need by type and context. Of a model that is not cached, only config.json is downloaded.",
    )
    parser.add_argument("model", metavar="MODEL", help="Built-in name, directory, .gguf file or Hugging Face id.")
    add_revision(parser)
    add_device(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    model, where = describe_model(options.model, options.revision)
    facts = _facts(options.model, model, where, options.device)
    print(json.dumps(facts | {"config": dict(model.config)}, indent=2) if options.json else "\n".join(_lines(facts, model)))
    return 0


def _facts(name: str, model: ModelDescription, where: str, device: str) -> dict[str, Any]:
    stored = {"as stored": model.weights_bytes}
    by_type = {kind: round(size * model.num_parameters) for kind, size in WEIGHT_TYPES.items()} if model.num_parameters else {}
    try:
        kv_bytes, encoded = dict(kv_need(model.config).by_context), encoded_bytes(model.config)
    except ModelError:
        kv_bytes, encoded = {}, 0
    return {
        "model": name,
        "path": where,
        "family": model.family,
        "input_modalities": model.input_modalities,
        "num_parameters": model.num_parameters,
        "problem": why_not_here(model, device),
        "weights_bytes": stored | by_type,
        "kv_bytes_by_context": kv_bytes,
        "encoded_bytes": encoded,
    }


def _lines(facts: dict[str, Any], model: ModelDescription) -> list[str]:
    size = decimal_size(model.weights_bytes)
    parameters = "unknown" if model.num_parameters is None else count(model.num_parameters)
    rows = [
        ("model", facts["model"]),
        ("files", f"{facts['path']} ({size})" if facts["path"] else f"not downloaded ({size})"),
        ("family", facts["family"]),
        ("prompts", " and ".join(f"{each}s" for each in facts["input_modalities"])),
        ("parameters", parameters),
        *((text, str(model.config[key])) for key, text in _SHOWN.items() if model.config.get(key) is not None),
        ("runs here", f"no: {facts['problem']}" if facts["problem"] else "yes"),
        ("weights", ", ".join(f"{binary_size(each)} {kind}" for kind, each in facts["weights_bytes"].items())),
        *([("encoder", f"{binary_size(facts['encoded_bytes'])} for the audio of a request")] if facts["encoded_bytes"] else []),
    ]
    return [*table(rows), *_kv_lines(facts["kv_bytes_by_context"])]


def _kv_lines(by_context: dict[int, dict[str, int]]) -> list[str]:
    if not by_context:
        return []
    rows = [("tokens", *KV_TYPES)]
    rows += [(str(tokens), *(binary_size(need[kind]) for kind in KV_TYPES)) for tokens, need in by_context.items()]
    return ["", "Keys and values of one request, by its length and --kv-cache-dtype:", *table(rows)]
