"""Reads the MLP of a decoder layer, or its mixture of experts, from a model's weights."""

from tetrad.worker_svc.layers.activation import activation, gate_of
from tetrad.worker_svc.layers.experts import InputWeighted, MixedExperts, MixOf, WithShared
from tetrad.worker_svc.layers.mlp import Expert, GatedMlp, Mlp, PlainMlp
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.routers import Router
from tetrad.worker_svc.model_facts.config import Experts, LayerConfig, ModelConfig


class MlpReader:
    """Reads one layer's MLP at a time.

    Args:
        config: the model's description.
        parameters: the model's weights.
        mix_of: creates the Mix of a layer's experts.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters, mix_of: MixOf) -> None:
        self._config, self._parameters, self._mix_of = config, parameters, mix_of

    def mlp(self, prefix: str, layer: LayerConfig) -> Mlp:
        """Return a layer's MLP or mixture of experts."""
        return self._experts(prefix, layer.experts) if layer.experts else self._mlp(prefix, layer.intermediate_size)

    def _mlp(self, prefix: str, size: int, clamp: float = 0.0) -> Expert:
        config, linear = self._config, self._parameters.linear
        down = linear([(f"{prefix}.down_proj", config.hidden_size)], size)
        if not config.is_gated:
            up = linear([(f"{prefix}.up_proj", size)], config.hidden_size)
            return PlainMlp(up, down, activation(config.activation))
        gate_up = linear([(f"{prefix}.gate_proj", size), (f"{prefix}.up_proj", size)], config.hidden_size)
        return GatedMlp(gate_up, down, gate_of(config.activation, clamp))

    def _experts(self, prefix: str, experts: Experts) -> Mlp:
        parameters, hidden, number = self._parameters, self._config.hidden_size, experts.num_experts
        name = f"{prefix}.router_correction"
        correction = parameters.vector(name, number) if parameters.has(name) else None
        router = Router(parameters.linear([(f"{prefix}.router", number)], hidden), correction, experts)
        size = experts.intermediate_size
        each = {index: self._mlp(f"{prefix}.experts.{index}", size, experts.clamp) for index in experts.numbers}
        kind = InputWeighted if experts.router == "sigmoid_input" else MixedExperts
        mixed = kind(router, self._mix_of(each, number))
        if not experts.shared_size:
            return mixed
        gate = parameters.linear([(f"{prefix}.shared_expert_gate", 1)], hidden) if experts.has_shared_gate else None
        return WithShared(mixed, self._mlp(f"{prefix}.shared_expert", experts.shared_size), gate)
