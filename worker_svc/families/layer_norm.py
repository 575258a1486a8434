"""Models with LayerNorm and Llama's tensor names: Phi-1 and 2, StableLM, Nemotron."""

from dataclasses import replace

from tetrad.worker_svc.families.decoder import MLP, QKV, decoder
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_NORM = frozenset({"norm"})


def phi(values: Values) -> ModelConfig:
    """Describe Phi-1 and 2: attention and MLP in parallel after one norm, biases everywhere, half of a head is rotated."""
    names = {
        "self_attn.o_proj": Stored("self_attn.dense"),
        "mlp.up_proj": Stored("mlp.fc1"),
        "mlp.down_proj": Stored("mlp.fc2"),
    }
    return decoder(
        values,
        rope={"share": 0.5},
        default_activation="gelu_new",
        norm="layer",
        is_parallel=True,
        is_norm_shared=True,
        is_gated=False,
        biases=QKV | MLP | _NORM | {"o_proj", "lm_head"},
        tensors=TensorNames(in_layer=names, in_model={"model.norm": Stored("model.final_layernorm")}),
    )


def stablelm(values: Values) -> ModelConfig:
    """Describe StableLM: rotary embeddings on a quarter of a head."""
    is_parallel = bool(values.get("use_parallel_residual"))
    return decoder(
        values,
        rope={"share": 0.25},
        norm="layer",
        is_parallel=is_parallel,
        is_norm_shared=is_parallel,
        biases=_NORM | (QKV if values.get("use_qkv_bias") else frozenset()),
    )


def nemotron(values: Values) -> ModelConfig:
    """Describe Nemotron-4 and Minitron: norms that multiply by 1 + w, an MLP without a gate, half of a head is rotated."""
    norms = ("input_layernorm", "post_attention_layernorm")
    config = decoder(
        values,
        rope={"share": 0.5},
        default_activation="relu2",
        norm="layer",
        is_gated=False,
        tensors=TensorNames(
            in_layer={name: Stored(name, plus=1.0) for name in norms},
            in_model={"model.norm": Stored("model.norm", plus=1.0)},
        ),
    )
    return replace(config, biases=config.biases | _NORM)
