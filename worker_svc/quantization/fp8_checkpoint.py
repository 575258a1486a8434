"""Fp8 checkpoints: weights in e4m3 with one scale per tensor, per row, or per block of 128 x 128.

`weight` [R, C]; `weight_scale` (or `weight_scale_inv`, with the same meaning) of shape [], [1], [R] or [R, 1], or a value per
block. Hugging Face's `fp8` and `compressed-tensors` write this format. Scales that were measured for activations are not used:
each row of activations gets its own scale in each step, which is more exact.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import FLOATS, WeightLoader
from tetrad.worker_svc.model_facts.quantization import MODELOPT_ALGORITHMS, choose
from tetrad.worker_svc.quantization.fp8 import fp8_matrix
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainScheme

_BLOCK = 128
_SCALES = ("weight_scale_inv", "weight_scale")


class Fp8Scheme:
    """The Scheme of fp8 checkpoints.

    Args:
        plain: reads matrices that are not quantized.
        is_blocked: whether there is one scale per block.
    """

    def __init__(self, plain: PlainScheme, *, is_blocked: bool) -> None:
        self._plain, self._is_blocked = plain, is_blocked

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        found = next((f"{name}.{each}" for each in _SCALES if weights.has(f"{name}.{each}")), None)
        if found is None:
            return self._plain.read(weights, name, rows, columns)
        device = self._plain.context.device
        weight = weights.get_stored(f"{name}.weight", (rows, columns), dtypes=[torch.float8_e4m3fn])
        blocks = (-(-rows // _BLOCK), -(-columns // _BLOCK))
        shapes = [blocks] if self._is_blocked else [(), (1,), (rows,), (rows, 1)]
        scales = weights.get_stored(found, *shapes, dtypes=FLOATS, num_parameters=0).to(device)
        if self._is_blocked:
            of_rows = scales.repeat_interleave(_BLOCK, 0)[:rows]
            return fp8_matrix(self._plain.context, weight.to(device), of_rows, _BLOCK)
        return fp8_matrix(self._plain.context, weight.to(device), scales.reshape(-1, 1).expand(rows, 1), columns)


def has_blocks(config: Mapping[str, Any]) -> bool:
    """Return whether a config of Hugging Face's `fp8` or of `compressed-tensors` has scales of blocks."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("strategy") == "block":
            return True
    return config.get("weight_block_size") is not None


def open_fp8(config: Mapping[str, Any], plain: PlainScheme) -> Fp8Scheme:
    """Return the scheme of checkpoints with Hugging Face's `fp8`."""
    choose(config, "fmt", ["e4m3", "float8_e4m3fn"], default="e4m3")
    block = choose(config, "weight_block_size", [[_BLOCK, _BLOCK], None])
    return Fp8Scheme(plain, is_blocked=block is not None)


def open_modelopt_fp8(config: Mapping[str, Any], plain: PlainScheme) -> Fp8Scheme:
    """Return the scheme of ModelOpt's checkpoints in fp8."""
    choose(config, "quant_algo", MODELOPT_ALGORITHMS)
    return Fp8Scheme(plain, is_blocked=False)


def open_compressed_tensors(config: Mapping[str, Any], plain: PlainScheme) -> Fp8Scheme:
    """Return the scheme of `compressed-tensors` checkpoints; raise ModelError unless all weights are in fp8."""
    choose(config, "format", ["float-quantized"])
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelError("quantization_config: config_groups says nothing.")
    strategies = {_strategy(group) for group in groups.values()}
    if "block" in strategies and len(strategies) > 1:
        raise ModelError("quantization_config: config_groups of blocks and of others at once are not supported.")
    return Fp8Scheme(plain, is_blocked="block" in strategies)


def _strategy(group: Any) -> str:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelError("quantization_config: a group of config_groups says nothing of its weights.")
    choose(weights, "num_bits", [8])
    choose(weights, "type", ["float"])
    strategy: str = choose(weights, "strategy", ["tensor", "channel", "block"])
    if strategy == "block":
        choose(weights, "block_structure", [[_BLOCK, _BLOCK]])
    return strategy
