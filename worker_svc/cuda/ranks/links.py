"""Stage links: connections of a rank with the other stages of a pipeline, for hidden states and sampled tokens on the device.

Rank 0, which receives plans and returns results, has the last layers, so that it samples where the hidden states end. Hidden
states pass from stage to stage; sampled tokens go from the last layers' stage to all others, whose next steps need them. The
shards of a stage have the same hidden states and tokens, so each rank exchanges them with the ranks of its own shard.

Exchanges are queued like kernels, on streams of their own: sending delays no kernel, and the host waits for NCCL nowhere. With
gloo, where the device is host memory, the host waits for what it receives.
"""

from collections import deque
from typing import Any

import torch

from tetrad.worker_svc.core.ranks import Shard, Stage
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.ranks.collectives import DeviceCollectives, abort
from tetrad.worker_svc.layers.rendezvous import STEP_TIMEOUT_S, Rendezvous
from tetrad.worker_svc.runner.rank_channels import Arrival, RankChannels

LINK_TIMEOUT_S = 600.0
"""Longest wait of a GPU for another stage, in seconds: at the first steps, the stages before compile their kernels."""
_NUM_SENT = 64
"""Largest number of sent tensors that a link keeps until they have arrived; the steps in flight need fewer."""


def in_layer_order(stage: Stage) -> Stage:
    """Return the place of a stage's layers in the model: stage 0 of a group has the last layers."""
    return Stage(stage.size - 1 - stage.index, stage.size)


class Link:
    """The connections of one rank of each stage, for one kind of tensor.

    Args:
        name: the name of the connections.
        place: the place of this rank's layers.
        accelerator: the rank's device.
    """

    def __init__(self, name: str, place: Stage, accelerator: Accelerator) -> None:
        self._name, self._place, self._accelerator = name, place, accelerator
        self._group: Any = None  # torch's types say less than its objects do
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()

    def connect(self, met: Rendezvous, sources: dict[int, int]) -> None:
        """Connect to the ranks of the other stages, which call this as well.

        Args:
            met: the meeting point.
            sources: the stage from which each stage receives tensors.

        Raises DeadlineExceeded or Unavailable.
        """
        place, device = self._place, self._accelerator.device

        def exchange_once(group: Any) -> None:
            for stage, source in sources.items():  # in one order on all ranks, so that none waits for a later exchange
                if stage == place.index:
                    group.recv([torch.empty(1, device=device)], source, 0).wait()
                elif source == place.index:
                    group.send([torch.zeros(1, device=device)], stage, 0).wait()

        group = met.connect(self._name, place.index, place.size, STEP_TIMEOUT_S)
        self._group = self._accelerator.process_group(met, self._name, group, LINK_TIMEOUT_S, exchange_once)

    def disconnect(self) -> None:
        """Close the connections: pending exchanges fail."""
        if self._group is not None:
            abort(self._group)
        self._group, self._sent = None, deque()

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        """Send a tensor, which nobody may change afterwards, to a stage; raise ConnectionError without connections."""
        self._sent.append((self._connected().send([tensor], stage, 0), tensor))
        while self._sent and (len(self._sent) > _NUM_SENT or self._sent[0][0].is_completed()):
            self._sent.popleft()[0].wait()

    def expect(self, tensor: torch.Tensor, stage: int) -> Arrival:
        """Start to receive a tensor from a stage; raise ConnectionError without connections."""
        return Arrival(tensor, self._connected().recv([tensor], stage, 0))

    def _connected(self) -> Any:
        if self._group is None:
            raise ConnectionError("The rank has left its group.")
        return self._group


class StageLinks:
    """The links of one rank of a pipeline.

    Args:
        shard: the shard of the rank.
        place: the place of its layers, see in_layer_order.
        accelerator: the rank's device.

    Attributes:
        place: as above.
    """

    def __init__(self, shard: Shard, place: Stage, accelerator: Accelerator) -> None:
        self.place, self._device = place, accelerator.device
        self._hidden = Link(f"hidden-{shard.index}", place, accelerator)
        self._tokens = Link(f"tokens-{shard.index}", place, accelerator)

    def connect(self, met: Rendezvous) -> None:
        """Connect to the other stages, which call this as well; raise DeadlineExceeded or Unavailable."""
        last = self.place.size - 1
        self._hidden.connect(met, {stage: stage - 1 for stage in range(1, self.place.size)})
        self._tokens.connect(met, dict.fromkeys(range(last), last))

    def disconnect(self) -> None:
        """Close the connections: pending exchanges fail."""
        self._hidden.disconnect()
        self._tokens.disconnect()

    def send_hidden(self, hidden: torch.Tensor) -> None:
        """Send hidden states [T, hidden] to the stage of the next layers; the caller may change them afterwards."""
        self._hidden.send(hidden.clone(), self.place.index + 1)

    def receive_hidden(self, target: torch.Tensor) -> None:
        """Receive hidden states [T, hidden] from the stage of the layers before."""
        self._hidden.expect(target, self.place.index - 1).wait()

    def send_tokens(self, chosen: torch.Tensor) -> None:
        """Send the tokens and largest logits [2, R] int32 of sampled rows (see argmax) to all other stages."""
        for stage in range(self.place.index):
            self._tokens.send(chosen, stage)

    def expect_tokens(self, num_rows: int) -> tuple[torch.Tensor, Arrival]:
        """Start to receive what the last stage sends of `num_rows` rows; return the tensor [2, R] int32 and its arrival."""
        chosen = torch.empty(2, num_rows, dtype=torch.int32, device=self._device)
        return chosen, self._tokens.expect(chosen, self.place.size - 1)


class DeviceChannels(RankChannels):
    """The connections of one rank of the cuda device.

    Args:
        shard, stage: the place of the rank.
        accelerator: the rank's device.

    Attributes:
        links: the connections to the other stages; None: there are none.
    """

    def __init__(self, shard: Shard, stage: Stage, accelerator: Accelerator) -> None:
        super().__init__(shard, stage, DeviceCollectives(shard, accelerator))
        self.links = StageLinks(shard, in_layer_order(stage), accelerator) if stage.size > 1 else None

    def _connect_stages(self, met: Rendezvous) -> None:
        if self.links is not None:
            self.links.connect(met)

    def _disconnect_stages(self) -> None:
        if self.links is not None:
            self.links.disconnect()
