"""LoRA on several ranks: reads one rank's part of an adapter, which is cut like the linear layers that it changes.

Every rank reads the whole adapter and checks it against the whole model, so that all ranks accept or refuse it together. A
stage then keeps the modules of its layers, and a shard keeps its rows of B or its columns of A.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.lora_files import read_lora
from tetrad.worker_svc.checkpoint.lora_weights import LoraPair, LoraWeights
from tetrad.worker_svc.checkpoint.sharded import ShardCuts
from tetrad.worker_svc.core.lora import LoraLimits, LoraSite
from tetrad.worker_svc.core.ranks import Shard, Stage
from tetrad.worker_svc.layers.lora import AdaptedParameters, LoraReader, LoraRows
from tetrad.worker_svc.layers.sketch import SketchParameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.stages import OutputEnd, stage_config, stage_layers
from tetrad.worker_svc.models.host import HostDecoder

_LAYER = re.compile(r"^model\.layers\.(\d+)(?=\.)")


def whole_reader(config: ModelConfig, limits: LoraLimits) -> LoraReader:
    """Return the function that reads whole adapters of a model, for a model on one rank."""
    return partial(read_lora, names=config.tensors, max_rank=limits.max_lora_rank)


class LoraPartReader:
    """A LoraReader of one rank's part of adapters.

    Args:
        config: the description of the whole model.
        limits: the limits of adapters.
        has: returns whether the whole model has a tensor with this name.
        shard, stage: the rank's place.
        output: the stage with the output layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        limits: LoraLimits,
        has: Callable[[str], bool],
        shard: Shard,
        stage: Stage,
        output: OutputEnd = "first",
    ) -> None:
        self._read, self._cuts = whole_reader(config, limits), ShardCuts(config, shard)
        self._layers, self._part = stage_layers(config, stage, output), stage_config(config, stage, output)
        rows = LoraRows(self._read)
        HostDecoder(config, AdaptedParameters(SketchParameters(has), rows, adapts_experts=True))
        self._sites = rows.sites

    def __call__(self, path: Path, sites: Mapping[str, LoraSite]) -> LoraWeights:
        """Return the rank's part of an adapter; `sites` are the modules of this rank that adapters may change."""
        weights = self._read(path, self._sites)
        own = {self._own_name(name): (name, pair) for name, pair in weights.pairs.items()}
        pairs = {}
        for name, (whole_name, pair) in own.items():
            if name is None:
                continue
            if name not in sites:
                raise ModelError(f"The adapter changes module {whole_name}, which cannot be adapted on several ranks.")
            pairs[name] = self._cut(name, pair, sites[name])
        return LoraWeights(weights.digest, pairs)

    def _own_name(self, name: str) -> str | None:
        """Return a module's name within this stage; None if the module belongs to another stage."""
        found = _LAYER.match(name)
        if found is None:
            is_own = self._part.has_output if name == "lm_head" else self._part.has_embeddings
            return name if is_own else None
        number = int(found[1])
        return _LAYER.sub(f"model.layers.{number - self._layers.start}", name) if number in self._layers else None

    def _cut(self, name: str, pair: LoraPair, site: LoraSite) -> LoraPair:
        rows, columns = self._cuts.of(name)
        if site.is_table:
            return replace(pair, a=_columns(pair.a, rows))
        return replace(pair, a=_columns(pair.a, columns), b=pair.b if rows is None else _rows(pair.b, rows))


def _rows(matrix: torch.Tensor, shard: Shard) -> torch.Tensor:
    first, end = shard.bounds(len(matrix))
    return matrix[first:end].clone()


def _columns(matrix: torch.Tensor, shard: Shard | None) -> torch.Tensor:
    if shard is None:
        return matrix
    first, end = shard.bounds(matrix.shape[1])
    return matrix[:, first:end].clone()
