"""Command-R: LayerNorm without bias, one norm for parallel attention and MLP, interleaved rotary embeddings, scaled logits."""

from dataclasses import replace
from typing import Any

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, WINDOW, Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EVERY_FOURTH = 4
_LOGIT_SCALE = 0.0625
"""Scale of the logits, if the config does not say."""


def cohere(values: Values) -> ModelConfig:
    """Describe Command-R and R+; R+ has a norm for each head."""
    return _cohere(values, rope={"theta": 5e5}, head_norms="each" if values.get("use_qk_norm") else "none")


def cohere2(values: Values) -> ModelConfig:
    """Describe Command-A and R7B: three layers with a sliding window and rotary embeddings, then one with neither."""
    pattern = int(values.get("sliding_window_pattern", default=_EVERY_FOURTH))
    kinds = values.layer_kinds([SLIDING if (index + 1) % pattern else FULL for index in range(values.num_layers())])
    return _cohere(values, kinds=kinds, default_window=WINDOW, rope_kinds=(SLIDING,))


def _cohere(values: Values, **changes: Any) -> ModelConfig:
    config = decoder(
        values,
        is_tied=True,
        norm="layer",
        is_parallel=True,
        is_norm_shared=True,
        logit_multiplier=float(values.get("logit_scale", default=_LOGIT_SCALE)),
        **changes,
    )
    dim = config.head_dim
    names = {f"self_attn.{part}_proj": Stored(f"self_attn.{part}_proj", paired=(dim, dim)) for part in "qk"}
    names |= {f"self_attn.{part}_norm": Stored(f"self_attn.{part}_norm", is_flat=True, paired=(dim, dim)) for part in "qk"}
    return replace(config, tensors=TensorNames(in_layer=names))
