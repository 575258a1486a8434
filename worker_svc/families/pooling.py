"""Pooling use: decides whether a checkpoint serves embeddings, classes, rewards or only generation. Never imports torch.

vLLM's rules, from the name of the architecture and two options, `runner` and `convert`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.values import architecture_of

Kind = Literal["embed", "classify", "token_classify", "reward", "process_reward"]
RUNNERS = ("auto", "generate", "pooling")
CONVERSIONS = ("auto", "none", "embed", "classify")

_MAX_LABELS = 1 << 20
KINDS: Mapping[str, Kind] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "token_classify",
    "ForProcessRewardModel": "process_reward",
    "ForRewardModel": "reward",
    "ForTextEncoding": "embed",
    "EmbeddingModel": "embed",
    "TextModel": "embed",
    "BidirectionalModel": "embed",
    "Model": "embed",
}
"""End of an architecture's name -> kind of the model's answers; the first match applies."""
_GENERATORS = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True)
class PoolingUse:
    """The pooling purpose of a decoder.

    Attributes:
        kind: the kind of its answers.
        architecture: the architecture of the decoder that computes the hidden states.
        generates: whether the model generates as well.
    """

    kind: Kind
    architecture: str
    generates: bool = False


def generator_of(architecture: str, known: Mapping[str, object]) -> tuple[str, Kind] | None:
    """Return the generating architecture whose pooling variant `architecture` is, and the kind of answers; None if none.

    Args:
        architecture: the architecture's name in config.json.
        known: the generating architectures.
    """
    for end, kind in KINDS.items():
        if architecture.endswith(end) and architecture not in known:
            stem = architecture.removesuffix(end)
            found = next((f"{stem}{each}" for each in _GENERATORS if f"{stem}{each}" in known), None)
            if found is not None:
                return found, kind
    return None


def pooling_use(
    config: Mapping[str, Any], known: Mapping[str, object], *, runner: str, convert: str, has_modules: bool
) -> PoolingUse | None:
    """Return the pooling use of a decoder; None if it only generates. Raise ModelError for options that contradict the model.

    Args:
        config: the values of config.json.
        known: the generating architectures.
        runner: "generate", "pooling", or "auto": decided by the files.
        convert: the kind of answers that a generating model is converted to: "auto", "none", "embed" or "classify".
        has_modules: whether the files include sentence-transformers' modules.json.
    """
    for name, value, allowed in (("runner", runner, RUNNERS), ("convert", convert, CONVERSIONS)):
        if value not in allowed:
            raise ModelError(f"{name} {value[:80]!r} is not supported; supported: {', '.join(allowed)}.")
    architecture = architecture_of(config)
    variant = generator_of(architecture, known)
    if variant is not None:
        if runner == "generate" or convert not in ("auto", "none"):
            option = f"runner {runner}" if runner == "generate" else f"convert {convert}"
            raise ModelError(f"Architecture {architecture} pools as its files say; {option} is not for it.")
        return PoolingUse(variant[1], variant[0])
    if convert in ("embed", "classify"):
        return PoolingUse("classify" if convert == "classify" else "embed", architecture, generates=runner == "generate")
    if runner == "pooling" and convert == "none":
        raise ModelError(f"Architecture {architecture} generates; runner pooling needs convert embed or classify.")
    if runner == "pooling" or (runner == "auto" and convert == "auto" and has_modules):
        return PoolingUse("embed", architecture)
    return None


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Return whether a decoder has bidirectional attention, so that it can only pool."""
    is_named = architecture_of(config).endswith("BidirectionalModel")
    return is_named or config.get("is_causal") is False or config.get("use_bidirectional_attention") is True


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a classifier's classes, by index; raise ModelError if the config contradicts itself."""
    names = config.get("id2label")
    if not isinstance(names, Mapping) or not names:
        count = config.get("num_labels", 2)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_LABELS:
            raise ModelError(f"config.json: num_labels must be an integer from 1 to {_MAX_LABELS}, got {str(count)[:80]!r}.")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        ordered = sorted((int(index), str(name)) for index, name in names.items())
    except ValueError:
        raise ModelError("config.json: the keys of id2label must be integers.") from None
    if [index for index, _ in ordered] != list(range(len(ordered))):
        raise ModelError(f"config.json: the keys of id2label must be 0 to {len(ordered) - 1}.")
    return tuple(name for _, name in ordered)
