"""Activations of MLPs, by the names of ModelConfig.activation, and the functions of gated MLPs."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.model_facts.config import Activation

Function = Callable[[torch.Tensor], torch.Tensor]
"""Activation function; it returns a new tensor."""
Gate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function (gate, up) -> input of the down projection; it returns a new tensor."""

_GPT_OSS_SLOPE = 1.702


def activation(name: Activation) -> Function:
    """Return the activation function with this name."""
    return _FUNCTIONS[name]


def gate_of(name: Activation, clamp: float = 0.0) -> Gate:
    """Return the function that computes activation(gate) * up; with a clamp, gpt-oss's gate."""
    return partial(_clamped, clamp) if clamp else partial(_gated, _FUNCTIONS[name])


def _gated(function: Function, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return function(gate).mul_(up)


def _clamped(clamp: float, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    return (up + 1).mul_(gate * torch.sigmoid(gate * _GPT_OSS_SLOPE))


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square_()


_FUNCTIONS: Mapping[Activation, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": _relu2,
}
