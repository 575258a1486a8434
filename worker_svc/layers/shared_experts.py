"""Shared experts: the workers of several engines each hold some experts of a model and compute them for all of these engines.

A layer sends its rows to the workers that hold the chosen experts, computes its own experts meanwhile, and adds the parts.
Parts are added in the order of the engines, and a product has rows of one engine only: every engine gets the same bits,
whatever the others compute. An engine without requests computes no steps; its worker only answers.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.expert_frames import FORMAT
from tetrad.worker_svc.layers.expert_links import ExpertLink
from tetrad.worker_svc.layers.expert_server import ExpertServer
from tetrad.worker_svc.layers.experts import ChosenExperts, Mix
from tetrad.worker_svc.layers.mlp import Expert


class ExpertExchange:
    """The connections of one worker with the workers of its rank in the other engines.

    Args:
        paths: the sockets of these workers, by engine; one is this worker's own.
        index: the number of this worker's engine.
        num_threads: number of torch's threads for a call of another worker.

    Raises ModelError if this worker's socket cannot be opened.
    """

    def __init__(self, paths: tuple[str, ...], index: int, num_threads: int) -> None:
        self.index, self.size = index, len(paths)
        self.links = {number: ExpertLink(path) for number, path in enumerate(paths) if number != index}
        self.server = ExpertServer(Path(paths[index]), num_threads)

    def part(self, shard: Shard) -> Shard:
        """Return the part of all experts that this worker holds, if its rank computes those of `shard` for its engine."""
        return part_of(shard, self.index, self.size)

    def leave(self) -> None:
        """Stop serving, and close the connections to the other workers."""
        self.server.close()
        for link in self.links.values():
            link.drop()


class SharedMixes:
    """Creates the Mix of each layer of a model whose experts are on several workers; see MixOf.

    Args:
        exchange: the connections to the other workers.
        shard: the experts that this rank computes for its engine, together with the workers of its rank in other engines.
        facts: text that is equal for workers that load the same weights.
        hidden_size: number of columns of a row.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of this engine's tokens that chose each expert.
        hello, hidden_size: see HeldExperts.
        index: the number of this worker's engine.
    """

    def __init__(self, exchange: ExpertExchange, shard: Shard, facts: str, hidden_size: int) -> None:
        self._exchange, self._shard, self.hidden_size, self.index = exchange, shard, hidden_size, exchange.index
        self._digest = hashlib.sha256(f"{exchange.size} {shard} {facts}".encode()).hexdigest()
        self.hello = self._hello_of(exchange.index)
        self.expert_tokens: list[Ints] = []
        self._held: list[ChosenExperts] = []

    def __call__(self, experts: Mapping[int, Expert], num_experts: int) -> Mix:
        """Return the Mix of a further layer; see MixOf."""
        layer = len(self._held)
        self._held.append(ChosenExperts(experts, np.zeros(num_experts, np.int64)))
        self.expert_tokens.append(np.zeros(num_experts, np.int64))
        size = self._exchange.size
        numbers = [range(*part_of(self._shard, index, size).bounds(num_experts)) for index in range(size)]
        return SharedExperts(self, layer, ChosenExperts(experts, self.expert_tokens[-1]), numbers)

    def serve(self) -> None:
        """Compute these experts for other workers from now on, as long as the model exists."""
        self._exchange.server.serve(self)

    def meet(self) -> None:
        """Connect to all other workers. Raises Unavailable if one has not loaded the model in time."""
        for index in self._exchange.links:
            self.link(index)

    def link(self, index: int) -> ExpertLink:
        """Return the open connection to the worker of another engine. Raises Unavailable if it is not ready in time."""
        link = self._exchange.links[index]
        link.connect(self._hello_of(index))
        return link

    def compute(self, layer: int, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See HeldExperts."""
        return self._held[layer](x, weights, chosen)

    def _hello_of(self, index: int) -> str:
        return f"{FORMAT} {index} {self._digest}"


class SharedExperts:
    """A Mix of experts on several workers.

    Args:
        mixes: gives the connections.
        layer: number of the layer among those with experts.
        own: the experts of this worker.
        numbers: the experts of each worker, by engine.
    """

    def __init__(self, mixes: SharedMixes, layer: int, own: Mix, numbers: list[range]) -> None:
        self._mixes, self._layer, self._own, self._numbers = mixes, layer, own, numbers

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix. Raises Unavailable if a worker with chosen experts is lost."""
        asked: dict[int, tuple[ExpertLink, torch.Tensor]] = {}
        try:
            for index, numbers in enumerate(self._numbers):
                rows = _rows_of(chosen, numbers)
                if index != self._mixes.index and len(rows):
                    asked[index] = self._mixes.link(index), rows
                    asked[index][0].send(self._layer, x[rows], weights[rows], chosen[rows])
            own, mixed = self._own(x, weights, chosen), torch.zeros_like(x)
            for index in range(len(self._numbers)):
                if index == self._mixes.index:
                    mixed.add_(own)
                elif index in asked:
                    link, rows = asked[index]
                    mixed.index_add_(0, rows, link.receive(len(rows), x.shape[1]))
        except BaseException:
            for link, _ in asked.values():  # the answers of these calls may still arrive
                link.drop()
            raise
        return mixed


def part_of(shard: Shard, index: int, size: int) -> Shard:
    """Return the part of all experts that the worker of engine `index` of `size` holds, of those of a rank's shard."""
    return Shard(shard.index * size + index, shard.size * size)


def _rows_of(chosen: torch.Tensor, numbers: range) -> torch.Tensor:
    """Return the rows [n] with a chosen expert among consecutive numbers."""
    return ((chosen >= numbers.start) & (chosen < numbers.stop)).any(1).nonzero().squeeze(1)
