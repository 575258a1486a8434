"""CUDA programs: builds the program of a decoder on the device, with this project's kernels if they support the model."""

import torch

from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.cuda.decoder import TRAITS, KernelDecoder
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.interface import DeviceModel, DeviceParameters
from tetrad.worker_svc.cuda.ranks.linears import ShardLinears
from tetrad.worker_svc.cuda.ranks.links import DeviceChannels, in_layer_order
from tetrad.worker_svc.cuda.torch_attention import MAX_HEAD_DIM
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import shard_config
from tetrad.worker_svc.model_facts.stages import stage_config
from tetrad.worker_svc.model_facts.traits import traits_of
from tetrad.worker_svc.models.draft_head import Taps

log = get_logger()


def beyond_kernels(config: ModelConfig) -> str:
    """Return what a model has that the kernel decoder does not support; an empty text: nothing."""
    large_heads = [f"heads of {config.head_dim}"] if config.head_dim > MAX_HEAD_DIM else []
    return ", ".join([*sorted(traits_of(config) - TRAITS), *large_heads])


def build_whole(
    config: ModelConfig,
    linears: DeviceParameters,
    cache_dtype: torch.dtype,
    offload: WeightOffload,
    device: torch.device,
    taps: Taps,
) -> DeviceModel:
    """Return the program of a whole decoder.

    Args:
        config: the model's description.
        linears: loads the weights to the device.
        cache_dtype: type of keys and values.
        offload: holds the layers whose matrices are in host memory; only the kernel decoder has some.
        device: the device.
        taps: read hidden states between layers.
    """
    if not beyond_kernels(config):
        return KernelDecoder(config, linears, cache_dtype, offload, taps)
    _log_torch(config)
    return TorchDecoder(config, linears, cache_dtype, device, taps)


def build_part(
    config: ModelConfig,
    linears: DeviceParameters,
    cache_dtype: torch.dtype,
    offload: WeightOffload,
    device: torch.device,
    ranks: DeviceChannels,
    taps: Taps,
    *,
    experts: Shard | None = None,
) -> DeviceModel:
    """Return the program of one rank's part of a decoder.

    Args:
        config: the description of the whole model.
        linears: loads the weights of the part to the device.
        cache_dtype, offload, device: see build_whole.
        ranks: the connections to the other ranks.
        taps: see build_whole.
        experts: the part of whole experts; None: a part of each expert.
    """
    part, vocab_size = shard_config(part_config(config, ranks), ranks.shard, experts=experts), config.vocab_size
    sums = ranks.sums if ranks.shard.size > 1 else None
    if not beyond_kernels(config):  # of the whole model: all stages hand on the same hidden states
        own = linears if sums is None else ShardLinears(linears, vocab_size, sums)
        return KernelDecoder(part, own, cache_dtype, offload, taps, vocab_size=vocab_size)
    _log_torch(config)
    return TorchDecoder(part, linears, cache_dtype, device, taps, sums, vocab_size)


def part_config(config: ModelConfig, ranks: DeviceChannels) -> ModelConfig:
    """Return the description of the layers that a rank has parts of."""
    return stage_config(config, in_layer_order(ranks.stage), "last")


def _log_torch(config: ModelConfig) -> None:
    log.info("model.runs_on_torch", architecture=config.architecture, reason=f"A model with {beyond_kernels(config)}")
