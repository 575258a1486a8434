"""Pooler config: the parameters by which a model's hidden states become the answer to a pooling request.

Read from config.json and, for models of the sentence-transformers library, from modules.json and the folders that it names.
Called when a model is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tetrad.services.errors import ModelError
from tetrad.services.models.model_directory import find_model_file, parse_json_object, read_model_json, read_model_text
from tetrad.worker_svc.core.pooling import Task

PoolingType = Literal["CLS", "LAST", "MEAN"]
Activation = Literal["identity", "sigmoid", "softmax", "tanh"]

_MODES: dict[str, PoolingType] = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
_DENSE_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Tanh": "tanh", "Sigmoid": "sigmoid"}
_CLASSIFIER_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_FLAG = "pooling_mode_"
_MAX_MODULES = 16
_MAX_DIMENSIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A linear layer after the pooling: a folder with model.safetensors ("linear.weight", "linear.bias")."""

    folder: Path
    in_features: int
    out_features: int
    has_bias: bool
    activation: Activation


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """The parameters by which a model pools prompts; a request may override some of them.

    Attributes:
        pooling: the rows that become the embedding: the first, the last, or the mean of all.
        dense: layers after the pooling, in order.
        normalizes: whether the embedding is scaled to length 1, by default.
        max_tokens: largest number of tokens in a prompt; None: the library's files give no limit.
        matryoshka: lengths to which embeddings may be shortened; empty: every length; None: no shortening.
        task: the default task; None: the model's first task.
        use_activation: whether embeddings are normalised and logits turned into probabilities, by default; None: as the
            model's files say.
        dimensions: default length of embeddings; None: the full length.
        logit_mean, logit_sigma: a logit becomes (logit - logit_mean) / logit_sigma.
        has_steps: answers per token contain only the tokens with step_tag_id.
        step_tag_id, returned_token_ids: defaults of PoolingSpec; None and empty: all tokens, all columns.
        chunked_processing, max_embed_len: see PoolingFacts.
    """

    pooling: PoolingType
    dense: tuple[DenseModule, ...] = ()
    normalizes: bool = True
    max_tokens: int | None = None
    matryoshka: tuple[int, ...] | None = None
    task: Task | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    has_steps: bool = False
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    chunked_processing: bool = False
    max_embed_len: int = 0

    @property
    def embeds_normalized(self) -> bool:
        """Whether embeddings are scaled to length 1, by default."""
        return self.normalizes if self.use_activation is None else self.use_activation


def read_pooler_config(path: Path, config: Mapping[str, Any], default: PoolingType) -> PoolerConfig:
    """Return the pooler config of a model's files; raise ModelError if the files contradict each other.

    Args:
        path: the model's directory, or a file, which has no modules.
        config: the values of config.json.
        default: the pooling of the model's family.
    """
    matryoshka = _matryoshka(config)
    if not path.is_dir() or find_model_file(path, "modules.json") is None:
        return PoolerConfig(default, matryoshka=matryoshka)
    pooling, dense, normalizes = default, [], False
    for module in _modules(path):
        kind, folder = str(_get(module, "type")).rpartition(".")[2], str(_get(module, "path"))
        if kind == "Pooling":
            pooling = _pooling(_folder(path, folder))
        elif kind == "Dense":
            dense.append(_dense(_folder(path, folder)))
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise ModelError(f"{path}: modules.json has a module of type {kind[:80]!r}, which is not supported.")
    return PoolerConfig(pooling, tuple(dense), normalizes, _max_tokens(path), matryoshka)


def has_pooling_modules(path: Path) -> bool:
    """Return whether the files have a modules.json with a Pooling module, as models of sentence-transformers have."""
    if not path.is_dir() or find_model_file(path, "modules.json") is None:
        return False
    return any(str(_get(module, "type")).rpartition(".")[2] == "Pooling" for module in _modules(path))


def classifier_activation(config: Mapping[str, Any], num_labels: int) -> Activation:
    """Return the activation that converts a classifier's logits (vLLM's and sentence-transformers' rules)."""
    problem = str(config.get("problem_type") or "")
    if problem in ("regression", "multi_label_classification"):
        return "identity" if problem == "regression" else "sigmoid"
    nested = config.get("sentence_transformers")
    named = nested.get("activation_fn") if isinstance(nested, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if named and not problem:
        name = str(named).rpartition(".")[2]
        if name not in _CLASSIFIER_ACTIVATIONS:
            raise ModelError(f"config.json: activation function {str(named)[:80]!r} is not supported.")
        return _CLASSIFIER_ACTIVATIONS[name]
    return "sigmoid" if num_labels == 1 else "softmax"


def _modules(path: Path) -> list[Any]:
    # modules.json contains a list; all other files contain objects.
    modules = parse_json_object(f'{{"modules": {read_model_text(path, "modules.json")}}}', f"{path}: modules.json")["modules"]
    if not isinstance(modules, list) or len(modules) > _MAX_MODULES:
        raise ModelError(f"{path}: modules.json must be a list of at most {_MAX_MODULES} modules.")
    return modules


def _get(module: Any, key: str) -> Any:
    return module.get(key, "") if isinstance(module, Mapping) else ""


def _folder(path: Path, name: str) -> Path:
    folder = path / name
    if Path(name).name != name or not folder.is_dir():
        raise ModelError(f"{path}: modules.json names the folder {name[:80]!r}, which is not there.")
    return folder


def _pooling(folder: Path) -> PoolingType:
    config = read_model_json(folder, "config.json") or {}
    named = config.get("pooling_mode")
    flags = [key.removeprefix(_FLAG) for key, value in config.items() if key.startswith(_FLAG) and value is True]
    modes = [mode.removesuffix("_token").removesuffix("_tokens") for mode in ([named] if isinstance(named, str) else flags)]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ModelError(f"{folder}: pooling modes {modes} are not supported; supported: one of {sorted(_MODES)}.")
    return _MODES[modes[0]]


def _dense(folder: Path) -> DenseModule:
    config = read_model_json(folder, "config.json") or {}
    num_inputs, num_outputs = _dimensions(folder, config, "in_features"), _dimensions(folder, config, "out_features")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _DENSE_ACTIVATIONS:
        raise ModelError(f"{folder}: activation function {name[:80]!r} is not supported.")
    return DenseModule(folder, num_inputs, num_outputs, bool(config.get("bias", True)), _DENSE_ACTIVATIONS[name])


def _dimensions(folder: Path, config: Mapping[str, Any], key: str) -> int:
    size = config.get(key)
    if not isinstance(size, int) or not 0 < size <= _MAX_DIMENSIONS:
        raise ModelError(f"{folder}: {key} must be an integer from 1 to {_MAX_DIMENSIONS}, got {str(size)[:80]!r}.")
    return size


def _max_tokens(path: Path) -> int | None:
    value = (read_model_json(path, "sentence_bert_config.json") or {}).get("max_seq_length")
    return value if isinstance(value, int) and value > 0 else None


def _matryoshka(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the lengths of Matryoshka embeddings (Kusupati et al. 2022) in config.json; see PoolerConfig.matryoshka."""
    lengths = config.get("matryoshka_dimensions")
    if isinstance(lengths, list) and lengths and all(isinstance(each, int) and each > 0 for each in lengths):
        return tuple(lengths)
    return () if config.get("is_matryoshka") is True else None
