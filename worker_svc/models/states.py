"""Reads the state layer of a decoder layer from a model's weights."""

import torch

from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.norm import Norm, RmsNorm, UnitNorm, unchanged
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.states.convolution import CausalConvolution, GatedConvolution
from tetrad.worker_svc.layers.states.delta_rule import DeltaRecurrence
from tetrad.worker_svc.layers.states.layer import ProjectedInputs, Recurrence, StateInputs, StateLayer
from tetrad.worker_svc.layers.states.mamba1 import Mamba1Recurrence, SelectionNorms, SelectiveInputs
from tetrad.worker_svc.layers.states.mamba2 import Mamba2Recurrence
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.states import GatedDeltaRule, Mamba1, Mamba2, ShortConvolution, State


class StateReader:
    """Reads one state layer at a time.

    Args:
        config: the model's description.
        parameters: the model's weights.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters) -> None:
        self._config, self._parameters = config, parameters

    def layer(self, prefix: str, state: State) -> StateLayer:
        """Return the state layer of a description."""
        hidden = self._config.hidden_size
        convolution = self._convolution(f"{prefix}.conv", state)
        parts = [(f"{prefix}.{name}", size) for name, size in state.parts.items()]
        return StateLayer(
            self._inputs(prefix, state, self._parameters.linear(parts, hidden), convolution),
            self._recurrence(prefix, state, convolution),
            self._parameters.linear([(f"{prefix}.out_proj", hidden)], state.size),
        )

    def _inputs(self, prefix: str, state: State, projection: Linear, convolution: CausalConvolution) -> StateInputs:
        if not isinstance(state, Mamba1):
            return ProjectedInputs(projection)
        return SelectiveInputs(
            state,
            projection,
            convolution,
            selection=self._parameters.linear([(f"{prefix}.x_proj", state.step_rank + 2 * state.state_dim)], state.size),
            steps=self._parameters.linear([(f"{prefix}.dt_proj", state.size)], state.step_rank),
            step_bias=self._numbers(f"{prefix}.dt_bias", state.size),
            norms=self._selection_norms(prefix, state),
        )

    def _recurrence(self, prefix: str, state: State, convolution: CausalConvolution) -> Recurrence:
        if isinstance(state, ShortConvolution):
            return GatedConvolution(state, convolution)
        if isinstance(state, Mamba1):
            decay = self._decay(prefix, state.size * state.state_dim).view(state.size, state.state_dim)
            skip = self._numbers(f"{prefix}.D", state.size)
            return Mamba1Recurrence(state, convolution, decay=decay.T.contiguous(), skip=skip)
        if isinstance(state, Mamba2):
            heads = state.num_heads
            return Mamba2Recurrence(
                state,
                convolution,
                step_bias=self._numbers(f"{prefix}.dt_bias", heads),
                decay=self._decay(prefix, heads),
                skip=self._numbers(f"{prefix}.D", heads),
                norm=self._mamba_norm(prefix, state),
            )
        return self._delta_rule(prefix, state, convolution)

    def _delta_rule(self, prefix: str, state: GatedDeltaRule, convolution: CausalConvolution) -> DeltaRecurrence:
        heads = state.num_value_heads
        return DeltaRecurrence(
            state,
            convolution,
            decay_bias=self._numbers(f"{prefix}.dt_bias", heads),
            decay=self._decay(prefix, heads),
            norm=RmsNorm(self._numbers(f"{prefix}.norm.weight", state.value_dim), self._config.norm_eps),
        )

    def _selection_norms(self, prefix: str, state: Mamba1) -> SelectionNorms:
        sizes = {"dt": state.step_rank, "b": state.state_dim, "c": state.state_dim}
        return SelectionNorms(
            *(self._selection_norm(f"{prefix}.{name}_layernorm", size, state) for name, size in sizes.items())
        )

    def _selection_norm(self, name: str, size: int, state: Mamba1) -> Norm:
        if state.selection_norm == "none":
            return unchanged
        if state.selection_norm == "unit":
            return UnitNorm(size, state.norm_eps)
        return RmsNorm(self._numbers(f"{name}.weight", size), state.norm_eps)

    def _mamba_norm(self, prefix: str, state: Mamba2) -> Norm:
        if state.gated_norm == "none":
            return unchanged
        weight = self._numbers(f"{prefix}.norm.weight", state.size).view(state.num_groups, -1)
        return GroupedNorm(weight, self._config.norm_eps)

    def _convolution(self, name: str, state: State) -> CausalConvolution:
        weight = self._numbers(f"{name}.weight", state.conv_size * state.kernel).view(-1, state.kernel)
        has_bias = "conv" in self._config.biases
        return CausalConvolution(weight, self._numbers(f"{name}.bias", state.conv_size) if has_bias else None)

    def _decay(self, prefix: str, heads: int) -> torch.Tensor:
        return -self._numbers(f"{prefix}.A_log", heads).exp()

    def _numbers(self, name: str, size: int) -> torch.Tensor:
        return self._parameters.vector(name, size).float()


class GroupedNorm:
    """An RMSNorm of each group of outputs separately.

    Args:
        weight: [groups, D].
        eps: added to the mean square.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._norm = weight, RmsNorm(torch.ones(weight.shape[1], device=weight.device), eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [T, groups, D]."""
        return self._norm(x).mul_(self._weight)
