"""Decoder layers: mixer and MLP with their norms, and the reader that builds layers from a model's weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic

import torch

from tetrad.worker_svc.attention.interface import AttentionBackend, ByGroup, M
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.cross_attention import CrossAttention
from tetrad.worker_svc.layers.experts import MixOf
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.norm import LayerNorm, Multiplied, Norm, RmsNorm, unchanged
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.layers.summed import SummedMlp
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig
from tetrad.worker_svc.models.mixers import Mixer, MixerReader
from tetrad.worker_svc.models.mlp import MlpReader


class DecoderLayer(Generic[M]):
    """A layer of a mixer and an MLP, each with its norms.

    Args:
        mixer, mlp: the two branches, whose outputs are added to the residual stream.
        before: norms of their inputs.
        after: norms and multipliers of their outputs.
    """

    def __init__(self, mixer: Mixer[M], mlp: Mlp, before: tuple[Norm, Norm], after: tuple[Norm, Norm]) -> None:
        self._mixer, self._mlp, self._before, self._after = mixer, mlp, before, after

    def add_to(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> None:
        """Compute this layer on the residual stream [T, hidden], in place; write the layer's caches."""
        hidden.add_(self._mixed(hidden, caches, step, metadata))
        hidden.add_(self._computed(hidden))

    def _mixed(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> torch.Tensor:
        return self._after[0](self._mixer(self._before[0](hidden), caches, step, metadata))

    def _computed(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._after[1](self._mlp(self._before[1](hidden)))


class CrossLayer(DecoderLayer[M]):
    """A layer with cross-attention between the mixer and the MLP.

    Args:
        cross: the cross-attention, whose output is added to the residual stream.
        cross_norm: the norm of its input.
        branches: the arguments of DecoderLayer.
    """

    def __init__(self, cross: CrossAttention, cross_norm: Norm, **branches: Any) -> None:
        super().__init__(**branches)
        self._cross, self._cross_norm = cross, cross_norm

    def add_to(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> None:
        """See DecoderLayer."""
        hidden.add_(self._mixed(hidden, caches, step, metadata))
        hidden.add_(self._cross(self._cross_norm(hidden), step))
        hidden.add_(self._computed(hidden))


class ParallelLayer(DecoderLayer[M]):
    """A layer whose mixer and MLP read the same residual stream."""

    def add_to(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> None:
        """See DecoderLayer."""
        mixed = self._mixed(hidden, caches, step, metadata)
        hidden.add_(self._computed(hidden).add_(mixed))


class NormedStreamLayer(DecoderLayer[M]):
    """A layer whose norms replace the residual stream, so that a branch is added to what it reads."""

    def add_to(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> None:
        """See DecoderLayer."""
        hidden.copy_(self._before[0](hidden))
        hidden.add_(self._after[0](self._mixer(hidden, caches, step, metadata)))
        hidden.copy_(self._before[1](hidden))
        hidden.add_(self._after[1](self._mlp(hidden)))


class MixerLayer(Generic[M]):
    """A layer with only a mixer.

    Args:
        mixer: the mixer, whose output is added to the residual stream.
        before: the norm of its input.
        after: the norm and multiplier of its output.
    """

    def __init__(self, mixer: Mixer[M], before: Norm, after: Norm) -> None:
        self._mixer, self._before, self._after = mixer, before, after

    def add_to(self, hidden: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> None:
        """See DecoderLayer."""
        hidden.add_(self._after(self._mixer(self._before(hidden), caches, step, metadata)))


class MlpLayer(Generic[M]):
    """A layer with only an MLP.

    Args:
        mlp: the MLP, whose output is added to the residual stream.
        before: the norm of its input.
        after: the norm and multiplier of its output.
    """

    def __init__(self, mlp: Mlp, before: Norm, after: Norm) -> None:
        self._mlp, self._before, self._after = mlp, before, after

    def add_to(
        self,
        hidden: torch.Tensor,
        caches: Sequence[torch.Tensor],  # noqa: ARG002 - one signature
        step: Step,  # noqa: ARG002 - one signature
        metadata: ByGroup[M],  # noqa: ARG002 - one signature
    ) -> None:
        """See DecoderLayer."""
        hidden.add_(self._after(self._mlp(self._before(hidden))))


class LayerReader(Generic[M]):
    """Reads one layer's weights at a time, so that packing needs memory for at most one layer twice.

    Args:
        config: the model's description.
        parameters: the model's weights.
        attention: creates the attention of each layer.
        mix_of: creates the Mix of a layer's experts.
        ranks: the ranks that share each layer; None: this rank has whole layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attention: AttentionBackend[M],
        mix_of: MixOf,
        ranks: Collectives | None = None,
    ) -> None:
        self._config, self._parameters, self._ranks = config, parameters, ranks
        self._mixers = MixerReader(config, parameters, attention, ranks)
        self._mlps = MlpReader(config, parameters, mix_of)

    def layer(self, index: int) -> DecoderLayer[M] | MixerLayer[M] | MlpLayer[M]:
        """Return a layer."""
        config, prefix, layer = self._config, f"model.layers.{index}", self._config.layers[index]
        if not layer.has_mixer:
            norm, after = self.norm(f"{prefix}.post_attention_layernorm"), self._after(f"{prefix}.mlp.output_norm")
            return MlpLayer(self._mlp(f"{prefix}.mlp", layer), norm, after)
        mixer = self._mixers.mixer(index)
        if not layer.has_mlp:
            return MixerLayer(mixer, self.norm(f"{prefix}.input_layernorm"), self._after(f"{prefix}.self_attn.output_norm"))
        kind = _kind_of(config)
        if config.encoder_length:
            kind = partial(CrossLayer, self._cross(index), self.norm(f"{prefix}.cross_attn_layernorm"))
        return kind(
            mixer=mixer,
            mlp=self._mlp(f"{prefix}.mlp", layer),
            before=self._before(prefix) if config.has_norms_before else (unchanged, unchanged),
            after=(self._after(f"{prefix}.self_attn.output_norm"), self._after(f"{prefix}.mlp.output_norm")),
        )

    def _cross(self, index: int) -> CrossAttention:
        config, parameters, prefix = self._config, self._parameters, f"model.layers.{index}.cross_attn"
        size = config.num_heads * config.head_dim
        return CrossAttention(
            parameters.linear([(f"{prefix}.q_proj", size)], config.hidden_size),
            parameters.linear([(f"{prefix}.o_proj", config.hidden_size)], size),
            layer=index,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
        )

    def _mlp(self, prefix: str, layer: LayerConfig) -> Mlp:
        mlp = self._mlps.mlp(prefix, layer)
        return mlp if self._ranks is None else SummedMlp(mlp, self._ranks)

    def norm(self, name: str) -> Norm:
        """Return a norm over hidden states."""
        config, parameters = self._config, self._parameters
        weight = parameters.vector(f"{name}.weight", config.hidden_size)
        if config.norm == "rms":
            return RmsNorm(weight, config.norm_eps)
        bias = parameters.vector(f"{name}.bias", config.hidden_size) if parameters.has(f"{name}.bias") else None
        return LayerNorm(weight, bias, config.norm_eps)

    def _before(self, prefix: str) -> tuple[Norm, Norm]:
        first = self.norm(f"{prefix}.input_layernorm")
        return first, first if self._config.is_norm_shared else self.norm(f"{prefix}.post_attention_layernorm")

    def _after(self, name: str) -> Norm:
        norm = self.norm(name) if self._config.has_norms_after else unchanged
        multiplier = self._config.residual_multiplier
        return norm if multiplier == 1 else Multiplied(norm, multiplier)


def _kind_of(config: ModelConfig) -> Callable[..., DecoderLayer[Any]]:
    """Return the kind of layers with a mixer and an MLP."""
    if config.is_parallel:
        return ParallelLayer
    return NormedStreamLayer if config.is_stream_normed else DecoderLayer
