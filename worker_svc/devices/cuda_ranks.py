"""Ranks of the cuda device: the rank's connections, and its part of a model: some layers, or a part of each layer.

Each worker has one GPU.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.pooling_use import find_use
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.staged import StagedSource
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.ranks import GroupPlace, Orders
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.ranks.links import DeviceChannels, in_layer_order
from tetrad.worker_svc.cuda.ranks.orders import decode_order
from tetrad.worker_svc.cuda.ranks.runners import OrderSender, PlanLeader, PlanMember
from tetrad.worker_svc.cuda.ranks.stages import StageParts
from tetrad.worker_svc.cuda.ranks.towers import LedTower
from tetrad.worker_svc.cuda.runner_parts import WHOLE, RunnerParts
from tetrad.worker_svc.devices.cuda_drafted import CudaDraftedModel
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.devices.lora_parts import LoraPartReader
from tetrad.worker_svc.kernels.int4_matmul import BLOCK as INT4_BLOCK
from tetrad.worker_svc.layers.lora import LoraReader
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import check_blocks, check_size
from tetrad.worker_svc.model_facts.stages import check_stages, stage_layers
from tetrad.worker_svc.runner.rank_channels import LeaderOrders, RankChannels

log = get_logger()


def join_ranks(place: GroupPlace, accelerator: Accelerator, ranks: DeviceChannels | None) -> DeviceChannels | None:
    """Connect to the other ranks of a group, and return the connections; None for a group of one.

    Args:
        place: this rank's place.
        accelerator: this rank's device.
        ranks: the connections of an earlier group, if there was one; they are closed.

    Raises DeadlineExceeded or Unavailable, see GroupDevice.join_group.
    """
    if ranks is not None and (ranks.shard, ranks.stage) != (place.shard, place.stage):
        ranks.disconnect()
        ranks = None
    if place.size == 1:
        return None
    ranks = ranks or DeviceChannels(place.shard, place.stage, accelerator)
    ranks.connect(place)
    log.info("group.joined", rank=place.rank, size=place.size, epoch=place.epoch)
    return ranks


def orders_of(ranks: RankChannels | None) -> Orders | None:
    """Return the leader's orders on a member, otherwise None."""
    return None if ranks is None or ranks.is_leader else LeaderOrders(ranks, decode_order)


def check_part(request: LoadRequest, facts: Mapping[str, Any], config: ModelConfig, ranks: RankChannels) -> None:
    """Raise ModelError if a decoder, with these facts in its files, cannot be divided among the ranks."""
    check_size(config, ranks.shard.size, expert_parallel=request.expert_parallel)
    check_stages(config, ranks.stage.size)
    if request.quantization == "int4":
        check_blocks(config, ranks.shard.size, INT4_BLOCK, expert_parallel=request.expert_parallel)
    if find_use(request, facts) is not None:
        raise ModelError(f"{ranks.option}: a model that pools runs on one worker; use 1.")


def stage_source(source: WeightSource, config: ModelConfig, ranks: DeviceChannels) -> WeightSource:
    """Return the source of the tensors of this rank's layers, from a source of all layers of the model."""
    layers = stage_layers(config, in_layer_order(ranks.stage), "last")
    if ranks.stage.size > 1:
        log.info("stage.loads", stage=ranks.stage.index, layers=f"{layers.start}-{layers.stop - 1}")
    return StagedSource(source, layers, config.num_layers, "last")


def part_loras(config: ModelConfig, source: WeightSource, ranks: DeviceChannels) -> Callable[[LoraLimits], LoraReader]:
    """Return the function that makes the reader of this rank's part of adapters."""
    stage = in_layer_order(ranks.stage)
    return partial(LoraPartReader, config, has=source.has, shard=ranks.shard, stage=stage, output="last")


def runner_parts(ranks: DeviceChannels) -> RunnerParts:
    """Return what creates the parts of this rank's runner."""
    return WHOLE if ranks.links is None else StageParts(ranks.links)


class CudaRankModel:
    """A LoadedModel: this rank's part of a model in device memory.

    Args:
        part: the part, alone or with a drafter.
        ranks: the connections to the other ranks.
    """

    def __init__(self, part: CudaModel | CudaDraftedModel, ranks: DeviceChannels) -> None:
        self._part, self._ranks, self.info, self.loras = part, ranks, part.info, part.loras
        self._orders, self.media = OrderSender(ranks), part.media
        if ranks.is_leader and part.media is not None:
            self.media = part.media._replace(tower=LedTower(part.media.tower, self._orders))
        self.kv_groups, self.sleep, self.wake_up = part.kv_groups, part.sleep, part.wake_up
        self.worst_case_bytes = part.worst_case_bytes

    @property
    def weights_on_device_bytes(self) -> int:
        """See CudaModel."""
        return self._part.weights_on_device_bytes

    def make_runner(self, layout: KvLayout) -> Runner:
        """See LoadedModel; the leader's runner takes plans, a member's runner takes the leader's orders."""
        runner = self._part.make_runner(layout)
        return PlanLeader(runner, self._orders) if self._ranks.is_leader else PlanMember(runner, self.media)
