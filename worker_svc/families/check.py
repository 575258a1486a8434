"""Model check: decides from config.json whether a device can run a model. Never imports torch.

Called by the devices when they load a model, and before a model's weights are downloaded, so both refuse the same models with
the same message.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.encoders import check_encoder, is_encoder
from tetrad.worker_svc.families.foreign import foreign_model
from tetrad.worker_svc.families.pooling import generator_of
from tetrad.worker_svc.families.registry import FAMILIES, find_family, read_config, supported_config
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.quantization import check_method
from tetrad.worker_svc.model_facts.sharding import NO_EXPERTS, check_size
from tetrad.worker_svc.model_facts.stages import check_stages


def check_config(config: Mapping[str, Any], device: str) -> ModelConfig:
    """Return the description of a decoder by its family; raise ModelError if the device cannot run the decoder.

    Args:
        config: the values of config.json.
        device: "cpu", "cuda" or "sim", which needs no weights; "auto" refuses models that neither cpu nor cuda can run.
    """
    if device == "sim":
        facts = read_config(config)
    else:
        check_method(config.get("quantization_config"))
        facts = supported_config(config)
    if facts.encoder_length and device not in ("cpu", "auto"):
        raise ModelError(
            f"Architecture {facts.architecture} has an encoder and a decoder, which the {device} device does not support. Use "
            "--device cpu."
        )
    return facts


def check_model(config: Mapping[str, Any], device: str, *, trusts_code: bool = False) -> None:
    """Raise ModelError if the device cannot run a model: a decoder of a family, an encoder, or a model of transformers.

    Args:
        config, device: see check_config.
        trusts_code: whether code from the model's files may run.
    """
    if is_encoder(config):
        check_encoder(config, device)
    elif generator_of(architecture_of(config), FAMILIES) is not None and device == "sim":
        raise ModelError(f"Architecture {architecture_of(config)} pools; the sim device does not. Use --device cpu or cuda.")
    elif device == "sim" or find_family(architecture_of(config)):
        check_config(config, device)
    else:
        foreign_model(config, trusts_code=trusts_code)


def check_ranks(
    config: Mapping[str, Any],
    num_shards: int,
    num_stages: int = 1,
    *,
    expert_parallel: bool = False,
    num_engines: int = 1,
    device: str = "auto",
) -> None:
    """Raise ModelError if a model that a device can run cannot be divided into this number of stages and shards.

    Args:
        config: the values of config.json.
        num_shards, num_stages: number of shards in a stage, and number of stages.
        expert_parallel: whether each shard holds whole experts.
        num_engines: number of engines that share whole experts.
        device: see check_config.
    """
    if num_shards == num_stages == 1 and not expert_parallel:
        return
    option = f"pipeline_parallel_size {num_stages}" if num_stages > 1 else f"tensor_parallel_size {num_shards}"
    if device == "sim" and num_shards * num_stages > 1:
        raise ModelError(f"{option}: the sim device computes a model on one worker; use the cpu or cuda device.")
    if expert_parallel and (is_encoder(config) or find_family(architecture_of(config)) is None):
        raise ModelError(f"{NO_EXPERTS}.")
    if is_encoder(config):
        raise ModelError(f"{option}: an encoder runs on one worker; use 1.")
    if find_family(architecture_of(config)) is None:
        raise ModelError(f"{option}: a model that transformers' code runs has one worker; use 1.")
    facts = read_config(config)
    if facts.encoder_length:
        raise ModelError(f"{option}: a model with an encoder and a decoder has one worker; use 1.")
    check_size(facts, num_shards, expert_parallel=expert_parallel, num_engines=num_engines)
    check_stages(facts, num_stages)


def may_have_gpu() -> bool:
    """Return whether the machine has a device file of NVIDIA's driver; only torch can tell whether the GPU is usable."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
