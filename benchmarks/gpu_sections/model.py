"""Models: a model of the measured shape, loaded as by the CUDA device, and the same model in transformers.

The module uses the worker's parts directly, not its device, whose settings need pydantic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_sections.bench import Bench
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.random import RandomSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.cuda.decoder import KernelDecoder
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.families.registry import supported_config

QWEN: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "bos_token_id": 151_643,
    "eos_token_id": 151_643,
}
"""The config of Qwen2.5-1.5B-Instruct."""
TINY: Mapping[str, Any] = {
    **QWEN,
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Loaded:
    """A model on the device.

    Attributes:
        model: the worker's model.
        source: source of its weights.
        weights_size_bytes: size of the weights on the device; a step reads all of them.
        num_weights: number of weights that each token is multiplied with, including a tied embedding, which is the output
            matrix.
    """

    model: KernelDecoder
    source: WeightSource
    weights_size_bytes: int
    num_weights: int


def random_source(bench: Bench) -> RandomSource:
    """Return random weights of the measured shape, generated on the device."""
    config = bench.pick(QWEN, TINY)
    return RandomSource(config, supported_config(config), 0, bench.device)


def load(bench: Bench, source: WeightSource, dtype: torch.dtype, quantization: str = "") -> Loaded:
    """Load the worker's model.

    Args:
        bench: the device.
        source: source of the weights.
        dtype: data type of activations, keys and values.
        quantization: as in the option of `tetrad serve`; empty: weights have `dtype`.
    """
    weights = WeightLoader(source, lambda *_: None)
    with torch.inference_mode():
        linears = DeviceLinears(source.config.get("quantization_config"), quantization, weights, bench.device, dtype)
        config = supported_config(source.config)
        model = KernelDecoder(config, linears, dtype, WeightOffload(bench.accelerator, 0, config.num_layers))
    return Loaded(model, source, linears.weights_size_bytes, weights.num_parameters)


def make_runner(
    bench: Bench,
    loaded: Loaded,
    *,
    batch: int,
    length: int,
    max_num_batched_tokens: int | None = None,
    use_graphs: bool = True,
) -> CudaModelRunner:
    """Return a runner for `batch` requests of up to `length` tokens, warmed up."""
    num_blocks = 1 + batch * -(-length // BLOCK_SIZE)
    most_tokens = max_num_batched_tokens or bench.pick(8192, 16)
    layout = KvLayout(num_blocks, BLOCK_SIZE, length, batch, most_tokens)
    runner = CudaModelRunner(loaded.model, layout, bench.accelerator, use_graphs=use_graphs)
    runner.warm_up(lambda *_: None)
    return runner


def load_transformers(
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    *,
    weights_dtype: torch.dtype = torch.float32,
    attention: str = "eager",
) -> Any:
    """Return transformers' model with the same weights.

    Args:
        source: source of the weights.
        dtype: data type of computation.
        device: device of the model.
        weights_dtype: data type to which weights are rounded first, as in the worker's model.
        attention: transformers' name of the attention implementation; "eager" is the simplest.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    kwargs = {key: value for key, value in source.config.items() if key not in ("model_type", "architectures")}
    config = AutoConfig.for_model(source.config["model_type"], **kwargs)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if source.has(name):
                parameter.copy_(source.load(name)[0].to(weights_dtype))
    missing = [name for name in parameters if not source.has(name)]
    assert not missing, f"transformers' model has weights that this one has not: {missing[:3]}"
    return model.eval()
