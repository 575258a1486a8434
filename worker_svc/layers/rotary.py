"""Rotary position embedding over interleaved pairs.

Dimensions 2i and 2i+1 of a head form the complex number that is turned by position * frequency[i]; one complex product then
rotates all queries and keys of a layer. Hugging Face keeps the pair as dimensions i and i + R/2, so weights are reordered
once at load (`interleave_heads`); queries and keys change alike, hence no score does. Dimensions behind the first R are not
turned (`partial_rotary_factor`). What kinds there are is in rotary_scalings.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tetrad.worker_svc.layers.rotary_scalings import scaled


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotation of heads by position. A table of all positions would be as large as the declared context;
    TurnTable keeps those that have been seen.

    Attributes:
        frequencies: [R / 2] float32, radians per position.
        gain: of turned queries and keys, each; YaRN's attention factor.
    """

    frequencies: torch.Tensor
    gain: float = 1.0

    def turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the turns [T, 1, R / 2] complex64 of positions [T], computed once per step for all layers."""
        angles = torch.outer(positions.float(), self.frequencies)
        return torch.polar(torch.full_like(angles, self.gain), angles).unsqueeze(1)

    def cos_sin(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the turns as [T, R] float32: R / 2 cosines and as many sines."""
        angles = torch.outer(positions.float(), self.frequencies)
        return torch.cat([angles.cos(), angles.sin()], 1) * self.gain

    def to(self, device: torch.device) -> "Rotary":
        """Return the same on another device."""
        return Rotary(self.frequencies.to(device), self.gain)


class TurnTable:
    """The turns of all positions up to the furthest that was asked for, so that a step computes none.

    Args:
        rotary: computes them.
    """

    _FIRST_ROWS = 1024

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._turns = torch.empty(0)

    def up_to(self, num_positions: int) -> torch.Tensor:
        """Return the turns of at least positions 0 .. num_positions - 1, [rows, R] as Rotary.cos_sin has them."""
        if len(self._turns) < num_positions:
            rows = max(self._FIRST_ROWS, 1 << (num_positions - 1).bit_length())
            self._turns = self._rotary.cos_sin(torch.arange(rows, device=self._rotary.frequencies.device))
        return self._turns


def rotary_of(rotary_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Rotary:
    """Return a model's, which turns R = `rotary_dim` dimensions; ModelError names a scaling that is not supported."""
    frequencies = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    return Rotary(*scaled(frequencies, theta, scaling or {}))


def rotate_(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotate the first R dimensions of heads [T, H, D] in place by turns [T, 1, R / 2]."""
    turned = heads[..., : 2 * turns.shape[2]]
    pairs = (*turned.shape[:2], turns.shape[2], 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(turned.view(pairs)).mul_(turns)
    else:
        turned_pairs = torch.view_as_complex(turned.float().view(pairs)) * turns
        turned.copy_(torch.view_as_real(turned_pairs).flatten(-2))


def interleave_heads(weight: torch.Tensor, head_dim: int, rotary_dim: int | None = None) -> torch.Tensor:
    """Reorder the rows of a q or k weight (or bias) [H * D, ...] from halves to interleaved pairs.

    Args:
        weight: of queries, keys, or the norm of either.
        head_dim: D.
        rotary_dim: R, how many of a head's first rows are pairs; None: all.
    """
    turned = head_dim if rotary_dim is None else rotary_dim
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    halves = heads[:, :turned].reshape(-1, 2, turned // 2, *weight.shape[1:])
    pairs = halves.transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, heads[:, turned:]], 1).reshape(weight.shape)
