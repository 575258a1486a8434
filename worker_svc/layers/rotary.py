"""Rotary position embedding over interleaved pairs.

Dimensions 2i and 2i+1 of a head form the complex number that is rotated by position * frequency[i]; one complex product then
rotates all queries and keys of a layer. Hugging Face stores the pair as dimensions i and i + R/2, so weights are reordered
once at load (`interleave_heads`); queries and keys are reordered in the same way, so scores do not change. Dimensions after the
first R are not rotated (`partial_rotary_factor`). rotary_scalings.py has the kinds of scaling.

With M-RoPE (Qwen2-VL, section 2.1) a token has positions on the axes time, height and width, and each pair turns by one of
them. The three are equal for text, unless images came before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.rotary_scalings import scaled


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotation of heads by position. A table of all positions would be as large as the declared context, so
    TurnTable keeps only positions up to the largest one used.

    Attributes:
        frequencies: [R / 2] float32, radians per position.
        gain: factor of rotated queries, and of rotated keys; YaRN's attention factor.
        axes: [R / 2] int64, the axis of each pair; None: positions have one axis.
    """

    frequencies: torch.Tensor
    gain: float = 1.0
    axes: torch.Tensor | None = None

    def turns(self, positions: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rotations [T, 1, R / 2] complex64; computed once per step for all layers.

        Args:
            positions: [T].
            axes: [3, T], the positions on each axis; None: they are `positions`.
        """
        angles = self._angles(positions, axes)
        return torch.polar(torch.full_like(angles, self.gain), angles).unsqueeze(1)

    def cos_sin(self, positions: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rotations as [T, R] float32: R / 2 cosines and R / 2 sines; see `turns`."""
        angles = self._angles(positions, axes)
        return torch.cat([angles.cos(), angles.sin()], 1) * self.gain

    def _angles(self, positions: torch.Tensor, axes: torch.Tensor | None) -> torch.Tensor:
        if axes is None or self.axes is None:
            return torch.outer(positions.float(), self.frequencies)
        return axes.index_select(0, self.axes).T.float() * self.frequencies

    def to(self, device: torch.device) -> "Rotary":
        """Return a copy on another device."""
        return Rotary(self.frequencies.to(device), self.gain, None if self.axes is None else self.axes.to(device))


class TurnTable:
    """A table of the rotations of all positions up to the largest one used, so that most steps compute none.

    Args:
        rotary: computes the rotations.
    """

    _FIRST_ROWS = 1024

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._turns = torch.empty(0)

    def up_to(self, num_positions: int) -> torch.Tensor:
        """Return the rotations of at least positions 0 .. num_positions - 1, [rows, R] as in Rotary.cos_sin."""
        if len(self._turns) < num_positions:
            rows = max(self._FIRST_ROWS, 1 << (num_positions - 1).bit_length())
            self._turns = self._rotary.cos_sin(torch.arange(rows, device=self._rotary.frequencies.device))
        return self._turns

    def of_axes(self, positions: Ints, axes: Ints) -> torch.Tensor:
        """Return the rotations of T tokens, [T, R] as in Rotary.cos_sin, bit for bit those of the table; only on the host.

        Args:
            positions: [T].
            axes: [3, T], the positions on each axis.
        """
        # By numpy: torch divides these few megabytes among threads, which on a busy machine wait for each other.
        table = self.up_to(1 + int(max(positions.max(), axes.max()))).numpy()
        if self._rotary.axes is None:
            return torch.from_numpy(table[positions])
        rows = np.ascontiguousarray(axes[np.tile(self._rotary.axes.numpy(), 2)].T)  # as the result lies in memory
        return torch.from_numpy(table[rows, np.arange(table.shape[1])])


def rotary_of(rotary_dim: int, theta: float, scaling: Mapping[str, Any] | None, axes: Sequence[int] = ()) -> Rotary:
    """Return the Rotary of a model, for R = `rotary_dim` dimensions; raise ModelError for an unsupported scaling.

    Args:
        rotary_dim, theta, scaling, axes: see Rope.
    """
    frequencies = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    return Rotary(*scaled(frequencies, theta, scaling or {}), torch.tensor(axes) if axes else None)


def rotate_(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotate the first R dimensions of heads [T, H, D] in place by `turns` [T, 1, R / 2], see Rotary.turns."""
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
        weight: the weight of queries, of keys, or of a norm of one of them.
        head_dim: D.
        rotary_dim: R, number of a head's first rows that are interleaved; None: all.
    """
    turned = head_dim if rotary_dim is None else rotary_dim
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    halves = heads[:, :turned].reshape(-1, 2, turned // 2, *weight.shape[1:])
    pairs = halves.transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, heads[:, turned:]], 1).reshape(weight.shape)
