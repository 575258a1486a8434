"""Ranks of the cuda device: the rank's connections, and its part of a model (tensor parallel, one GPU for each worker)."""

from collections.abc import Mapping
from typing import Any

from tetrad.services.errors import ModelError, Unsupported
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.pooling_use import find_use
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import Runner
from tetrad.worker_svc.core.ranks import GroupPlace, Orders
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.ranks.collectives import DeviceCollectives
from tetrad.worker_svc.cuda.ranks.orders import decode_order
from tetrad.worker_svc.cuda.ranks.runners import PlanLeader, PlanMember
from tetrad.worker_svc.devices.cuda_drafted import CudaDraftedModel
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.kernels.int4_matmul import BLOCK as INT4_BLOCK
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import check_blocks, check_size
from tetrad.worker_svc.runner.rank_channels import LeaderOrders, RankChannels

log = get_logger()


def join_ranks(place: GroupPlace, accelerator: Accelerator, ranks: RankChannels | None) -> RankChannels | None:
    """Connect to the other ranks of a group, and return the connections; None for a group of one.

    Args:
        place: this rank's place.
        accelerator: this rank's device.
        ranks: the connections of an earlier group, if there was one; they are closed.

    Raises:
        Unsupported: the group is a pipeline.
        DeadlineExceeded, Unavailable: see GroupDevice.join_group.
    """
    if place.stage.size > 1:
        raise Unsupported(f"{place.option}: the cuda device divides a model by tensor_parallel_size alone; use 1.")
    if place.size == 1:
        return None
    if ranks is None or ranks.shard != place.shard:
        ranks = RankChannels(place.shard, place.stage, DeviceCollectives(place.shard, accelerator))
    ranks.connect(place)
    log.info("group.joined", rank=place.rank, size=place.size, epoch=place.epoch)
    return ranks


def orders_of(ranks: RankChannels | None) -> Orders | None:
    """Return the leader's orders on a member, otherwise None."""
    return None if ranks is None or ranks.is_leader else LeaderOrders(ranks, decode_order)


def check_part(request: LoadRequest, facts: Mapping[str, Any], config: ModelConfig, ranks: RankChannels) -> None:
    """Raise ModelError if a decoder, with these facts in its files, cannot be divided among the ranks."""
    check_size(config, ranks.shard.size, expert_parallel=request.expert_parallel)
    if request.quantization == "int4":
        check_blocks(config, ranks.shard.size, INT4_BLOCK, expert_parallel=request.expert_parallel)
    if find_use(request, facts) is not None:
        raise ModelError(f"{ranks.option}: a model that pools runs on one worker; use 1.")


class CudaRankModel:
    """A LoadedModel: this rank's part of a model in device memory.

    Args:
        part: the part, alone or with a drafter.
        ranks: the connections to the other ranks.
    """

    def __init__(self, part: CudaModel | CudaDraftedModel, ranks: RankChannels) -> None:
        self._part, self._ranks, self.info, self.loras = part, ranks, part.info, part.loras
        self.kv_groups, self.sleep, self.wake_up = part.kv_groups, part.sleep, part.wake_up
        self.worst_case_bytes = part.worst_case_bytes

    @property
    def weights_on_device_bytes(self) -> int:
        """See CudaModel."""
        return self._part.weights_on_device_bytes

    def make_runner(self, layout: KvLayout) -> Runner:
        """See LoadedModel; the leader's runner takes plans, a member's runner takes the leader's orders."""
        runner = self._part.make_runner(layout)
        return PlanLeader(runner, self._ranks) if self._ranks.is_leader else PlanMember(runner)
