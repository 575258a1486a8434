"""Config values: reads the values of a config.json and records which ones a family has read.

A family reads the values that it implements. A value that changes a model's results and has not been read is refused by name,
so that a model never runs with wrong results.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.config_numbers import check_numbers
from tetrad.worker_svc.model_facts.config import Rope

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = 4096
"""Size of windows in most families, if the config does not have the key; null means no windows."""
_MAX_LAYERS = 1 << 10
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "lm_head_multiplier": (1,),
    "query_pre_attn_scalar": (),
    "no_rope_layers": (),  # 1 for a layer with rotary embeddings
    "no_rope_layer_interval": (),
    "num_experts": (1,),
    "num_local_experts": (1,),
    "n_routed_experts": (1,),
    "kv_lora_rank": (),
    "attention_chunk_size": (),
    "attn_temperature_tuning": (),
    "llama_4_scaling_beta": (),
    "use_qk_norm": (),
    "clip_qkv": (),
    "attention_sinks": (),
    "swiglu_alpha": (1.702,),
    "use_parallel_residual": (),
    "use_bidirectional_attention": (),
    "alibi": (),
    "apply_residual_connection_post_layernorm": (),
    "qk_layernorm": (),
    "scale_attn_by_inverse_layer_idx": (),
}
"""Keys that change a model's results -> their values without effect; false and null never have an effect."""


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the name of the model's architecture; raise ModelError if the config has none."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError("The model's config names no architecture.")
    return architectures[0]


class Values:
    """The values of a config.json.

    Args:
        config: the JSON object.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.architecture = architecture_of(config)
        self._config = config
        self._read: set[str] = set()

    def get(self, *keys: str, default: Any = None) -> Any:
        """Return the value of the first key whose value is not null, or `default`; mark all keys as read.

        Raises:
            ModelError: the value is or has a number that no model can have.
        """
        self._read.update(keys)
        key = next((key for key in keys if self._config.get(key) is not None), None)
        if key is None:
            return default
        check_numbers(key, self._config[key])
        return self._config[key]

    def if_absent(self, key: str, default: Any) -> Any:
        """Return the value of a key, which may be null, or `default` if the config does not have the key; mark it as read."""
        self._read.add(key)
        return self.get(key) if self._config.get(key) is not None else self._config.get(key, default)

    def need(self, *keys: str) -> Any:
        """Return the value of the first key whose value is not null; raise KeyError if there is none."""
        value = self.get(*keys)
        if value is None:
            raise KeyError(keys[0])
        return value

    def choose(self, *keys: str, known: Mapping[str, str], default: str) -> str:
        """Map a name in the config to its value in `known`; raise ModelError, with the known names, if it is unknown."""
        value = self.get(*keys, default=default)
        key = next((key for key in keys if self._config.get(key) == value), keys[0])
        if value not in known:
            raise ModelError(
                f"The model's config has {key} {str(value)[:80]!r}, which is not supported; supported: "
                f"{', '.join(sorted(known))}."
            )
        return known[value]

    def inside(self, text_config: Mapping[str, Any] | None, defaults: Mapping[str, Any], *, is_tied: bool) -> "Values":
        """Return the values of the text model that this model wraps.

        Args:
            text_config: the text model's config; None: this config contains its values.
            defaults: values that the config may omit.
            is_tied: whether the output layer is tied to the embedding, if neither config says.
        """
        inner = dict(defaults) | dict(self._config if text_config is None else text_config)
        # Newer files have it outside, older ones inside. Where they contradict, the tensors decide (checkpoint/own_output.py).
        inside = inner.get("tie_word_embeddings")
        tied = self.get("tie_word_embeddings", default=is_tied if inside is None else False) or inside
        return Values(inner | {"architectures": [self.architecture], "tie_word_embeddings": bool(tied)})

    def ignore(self, *keys: str) -> None:
        """Mark keys as read that a family knows and that do not change its description."""
        self._read.update(keys)

    def num_layers(self) -> int:
        """Return the number of layers; raise ModelError if it is out of range."""
        return number_of_layers("num_layers", self.need("num_hidden_layers", "n_layer", "num_layers", "n_layers"), least=1)

    def num_mtp_layers(self) -> int:
        """Return the number of MTP layers, which follow the last layer; raise ModelError if it is out of range."""
        return number_of_layers("num_nextn_predict_layers", self.get("num_nextn_predict_layers", default=0), least=0)

    def rope(
        self,
        head_dim: int,
        *,
        kind: str = FULL,
        theta: float = 10_000.0,
        share: float = 1.0,
        scaling: Mapping[str, Any] = MappingProxyType({}),
        original: int | None = None,
    ) -> Rope:
        """Return the rotary embedding, from rope_theta and rope_scaling, or from the newer rope_parameters.

        Args:
            head_dim: size of a head.
            kind: kind of the layers; newer configs may have parameters for each kind.
            theta, share: the base, and the rotated share of a head, if the config does not say.
            scaling: the parameters, if the config has neither rope_scaling nor rope_parameters.
            original: the longest context before the scaling, if the config has none beside it; None: the one in the scaling.
        """
        parameters = self.get("rope_parameters", default={} if self.get("rope_scaling") else scaling)
        of_kind = parameters.get(kind) or ({} if FULL in parameters else parameters)
        found = dict(self.get("rope_scaling", default={}) or of_kind)
        theta = self.get("rope_theta", "rotary_emb_base", default=theta)
        theta = next((each["rope_theta"] for each in (found, of_kind) if "rope_theta" in each), theta)
        share = self.get("partial_rotary_factor", "rotary_pct", default=share)
        share = found.get("partial_rotary_factor") or parameters.get("partial_rotary_factor") or share
        return Rope(int(head_dim * float(share)), float(theta), self._scaling(found, original))

    def layer_kinds(self, default: Sequence[str]) -> list[str]:
        """Return each layer's kind of attention: layer_types, or `default` if the config has none."""
        num_layers = self.num_layers()
        kinds = list(self.get("layer_types") or default)
        unknown = sorted({str(kind) for kind in kinds} - {FULL, SLIDING})
        if unknown or len(kinds) < num_layers:
            raise ModelError(
                f"The model's config has layer_types for {len(kinds)} of {num_layers} layers: "
                f"{', '.join(unknown)[:80] or 'too few'}; supported: {FULL}, {SLIDING}."
            )
        return kinds[:num_layers]

    def check_all_read(self) -> None:
        """Raise ModelError for a key that changes a model's results and has not been read."""
        places = (self._config, self._config.get("rope_parameters") or {}, self._config.get("rope_scaling") or {})
        for place in places:
            for key, neutral in _NEUTRAL.items():
                value = place.get(key)
                if value and key not in self._read and value not in neutral and not (isinstance(value, list) and all(value)):
                    raise ModelError(f"The model's config has {key} {str(value)[:80]}, which is not supported.")

    def _scaling(self, scaling: dict[str, Any], default: int | None) -> Mapping[str, Any] | None:
        if "type" in scaling and "rope_type" not in scaling:
            scaling["rope_type"] = scaling["type"]
        if scaling.get("rope_type") in ("su", "yarn") and "long_factor" in scaling:
            scaling["rope_type"] = "longrope"  # its names in Phi-3's first files
        if scaling.get("rope_type", "default") in ("default", "mrope"):  # mrope's axes have equal positions in text
            return None
        if scaling["rope_type"] in ("llama3", "yarn", "longrope"):
            # Missing values are computed from the context lengths. As in transformers, the original one beside the scaling
            # has precedence over the one in it.
            longest = float(self.need("max_position_embeddings"))
            original = self.get("original_max_position_embeddings", default=default)
            original = original or scaling.get("original_max_position_embeddings") or longest
            scaling |= {"max_position_embeddings": longest, "original_max_position_embeddings": original}
            if scaling.get("factor") is None:
                scaling["factor"] = longest / float(original)
        return scaling


def number_of_layers(name: str, value: Any, *, least: int) -> int:
    """Return a number of layers, the value of `name`; raise ModelError if it is no number, or out of range."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not least <= number <= _MAX_LAYERS:
        shown = str(value)[:40] or repr(value)
        raise ModelError(f"The model's config is impossible: {name} is {shown}, it must be {least} to {_MAX_LAYERS}.")
    return number
