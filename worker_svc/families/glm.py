"""GLM-4: rotary embeddings on half of a head, with adjacent pairs; later models have norms before and after each branch."""

from dataclasses import replace

from tetrad.worker_svc.families.decoder import QKV, decoder
from tetrad.worker_svc.families.llama import fused_gate_up
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_ROTARY = {"share": 0.5}


def glm(values: Values) -> ModelConfig:
    """Describe GLM-4 of 2024."""
    config = decoder(values, rope=_ROTARY)
    return replace(config, biases=config.biases & QKV, tensors=TensorNames(in_layer=_names(config)))


def glm4(values: Values) -> ModelConfig:
    """Describe GLM-4-0414."""
    config = replace(glm(values), has_norms_after=True)
    after = {"self_attn.output_norm": "post_self_attn_layernorm", "mlp.output_norm": "post_mlp_layernorm"}
    names = _names(config) | {name: Stored(stored) for name, stored in after.items()}
    return replace(config, tensors=TensorNames(in_layer=names))


def _names(config: ModelConfig) -> dict[str, Stored]:
    [rope] = config.ropes
    assert rope is not None
    paired = {f"self_attn.{part}_proj": Stored(f"self_attn.{part}_proj", paired=(config.head_dim, rope.dim)) for part in "qk"}
    return paired | fused_gate_up(config)
