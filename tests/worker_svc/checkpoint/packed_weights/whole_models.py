"""Whole models of two layers, quantized in one format: the files, and the same model in floats."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tests.worker_svc.conftest import tiny_config
from tests.worker_svc.quantization.checkpoints import (
    Checkpoint,
    add_awq,
    add_fp8,
    add_gptq,
    awq_checkpoint,
    drawn,
    gptq_checkpoint,
)

CONFIG = tiny_config(
    "LlamaForCausalLM",
    hidden_size=256,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
)
MATRICES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (64, 256),
    "self_attn.v_proj": (64, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (384, 256),
    "mlp.up_proj": (384, 256),
    "mlp.down_proj": (256, 384),
}
_NF4_LOW = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0)
NF4 = torch.tensor([*_NF4_LOW, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])
Add = Callable[[Checkpoint, str, int, int], None]


def write_model(directory: Path, checkpoint: Checkpoint, add: Add) -> tuple[Path, Path]:
    """Return the directories of a model whose matrices `add` has quantized, and of its twin in float32.

    Norms are small: with random weights of this size, attention would be all or nothing.
    """
    names = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in MATRICES.items()}
    for name, (rows, columns) in names.items():
        add(checkpoint, name, rows, columns)
    shared = {name: torch.from_numpy(drawn(name).normal(size=(320, 256))).float() for name in EMBEDDINGS}
    norms = [f"model.layers.{layer}.{name}layernorm" for layer in range(2) for name in ("input_", "post_attention_")]
    shared |= {f"{name}.weight": torch.full((256,), 0.1) for name in (*norms, "model.norm")}
    floats = {f"{name}.weight": torch.from_numpy(checkpoint.weights[name]).float().contiguous() for name in names}
    for path, config, tensors in (
        (directory / "quantized", {**CONFIG, "quantization_config": checkpoint.quantization}, checkpoint.tensors | shared),
        (directory / "floats", CONFIG, floats | shared),
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return directory / "quantized", directory / "floats"


EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


def words_of(values: np.ndarray, bits: int) -> torch.Tensor:
    """Return values [A, B] packed along their rows into int32, the first one lowest."""
    groups = values.reshape(len(values), -1, 32 // bits).astype(np.uint64)
    packed = (groups << (bits * np.arange(32 // bits, dtype=np.uint64))).sum(2).astype(np.uint32)
    return torch.from_numpy(packed.view(np.int32))


def compressed_config(form: str, **weights: object) -> dict[str, object]:
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel", **weights},
        "input_activations": activations if form == "int-quantized" else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "sparsity_config": {},
        "transform_config": {},
    }


def add_packed(bits: int, group: int, *, is_symmetric: bool = True, shuffles: bool = False) -> Add:
    """Return what adds a matrix of compressed-tensors' `pack-quantized`; `group` 0: a row."""

    def add(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
        random, count, middle = drawn(name), columns // (group or columns), 1 << bits - 1
        quanta = random.integers(0, 1 << bits, (rows, columns))
        zeros = np.full((rows, count), middle) if is_symmetric else random.integers(0, 1 << bits, (rows, count))
        scales = torch.from_numpy(random.uniform(0.01, 0.1, (rows, count)) * 8 / middle).bfloat16()
        groups = np.arange(columns) * count // columns
        if shuffles:
            groups = random.permutation(groups)
            checkpoint.tensors[f"{name}.weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        checkpoint.tensors |= {
            f"{name}.weight_packed": words_of(quanta, bits),
            f"{name}.weight_shape": torch.tensor([rows, columns]),
            f"{name}.weight_scale": scales,
        }
        if not is_symmetric:
            checkpoint.tensors[f"{name}.weight_zero_point"] = words_of(np.ascontiguousarray(zeros.T), bits).T
        checkpoint.weights[name] = (quanta - zeros[:, groups]) * scales.double().numpy()[:, groups]

    return add


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def add_mxfp4(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of compressed-tensors' `mxfp4-pack-quantized`."""
    random = drawn(name)
    quanta, exponents = random.integers(0, 16, (rows, columns)), random.integers(-8, -3, (rows, columns // 32))
    checkpoint.tensors |= {
        f"{name}.weight_packed": torch.from_numpy((quanta[:, ::2] | quanta[:, 1::2] << 4).astype(np.uint8)),
        f"{name}.weight_scale": torch.from_numpy((exponents + 127).astype(np.uint8)),
    }
    checkpoint.weights[name] = E2M1.double().numpy()[quanta] * np.repeat(2.0**exponents, 32, 1)


def add_nvfp4(names: dict[str, str], *, is_divided: bool) -> Add:
    """Return what adds a matrix in NVFP4, under an exporter's names of the values and of the matrix's factor."""

    def add(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
        random = drawn(name)
        quanta = random.integers(0, 16, (rows, columns))
        scales = torch.from_numpy(random.uniform(50, 400, (rows, columns // 16))).to(torch.float8_e4m3fn)
        factor = np.float32(random.uniform(0.0002, 0.0004))
        checkpoint.tensors |= {
            f"{name}.{names['values']}": torch.from_numpy((quanta[:, ::2] | quanta[:, 1::2] << 4).astype(np.uint8)),
            f"{name}.weight_scale": scales,
            f"{name}.{names['factor']}": torch.tensor(1 / factor if is_divided else factor),
            f"{name}.{names['input']}": torch.ones(()),
        }
        checkpoint.weights[name] = E2M1.double().numpy()[quanta] * np.repeat(scales.double().numpy(), 16, 1) * factor

    return add


def add_gptq_in_8_bits(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of GPTQ whose weights are as large as those in 4 bits."""
    add_gptq(checkpoint, name, rows, columns, 32, bits=8)
    checkpoint.tensors[f"{name}.scales"] /= 16
    checkpoint.weights[name] /= 16


def add_int8(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of compressed-tensors' `int-quantized`, with a scale measured for activations beside it."""
    quanta, scales = drawn(name).integers(-127, 128, (rows, columns)), drawn(name).uniform(0.001, 0.005, (rows, 1))
    checkpoint.tensors |= {
        f"{name}.weight": torch.from_numpy(quanta.astype(np.int8)),
        f"{name}.weight_scale": torch.from_numpy(scales).float(),
        f"{name}.input_scale": torch.ones(1),
    }
    checkpoint.weights[name] = quanta * scales.astype(np.float32)


def add_int_groups(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of compressed-tensors' `int-quantized` in groups with zeros, and of static activations."""
    random = drawn(name)
    quanta, zeros = random.integers(-128, 128, (rows, columns)), random.integers(-20, 20, (rows, columns // 64))
    scales = random.uniform(0.001, 0.005, zeros.shape).astype(np.float32)
    checkpoint.tensors |= {
        f"{name}.weight": torch.from_numpy(quanta.astype(np.int8)),
        f"{name}.weight_scale": torch.from_numpy(scales),
        f"{name}.weight_zero_point": torch.from_numpy(zeros.astype(np.int8)),
        f"{name}.input_scale": torch.ones(1),
        f"{name}.input_zero_point": torch.zeros(1, dtype=torch.int8),
    }
    checkpoint.weights[name] = (quanta - np.repeat(zeros, 64, 1)) * np.repeat(scales, 64, 1)


def add_naive_int4(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of compressed-tensors' `naive-quantized` in 4 bits, each in a byte."""
    quanta, scales = drawn(name).integers(-8, 8, (rows, columns)), drawn(name).uniform(0.02, 0.1, (rows, columns // 32))
    checkpoint.tensors |= {
        f"{name}.weight": torch.from_numpy(quanta.astype(np.int8)),
        f"{name}.weight_scale": torch.from_numpy(scales).float(),
    }
    checkpoint.weights[name] = quanta * np.repeat(scales.astype(np.float32), 32, 1)


def add_nf4(block: int, *, is_nested: bool) -> Add:
    """Return what adds a matrix of bitsandbytes in 4 bits; nested: its scales are quantized as well."""

    def add(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
        random, count = drawn(name), -(-rows * columns // block)
        quanta = random.integers(0, 16, rows * columns)
        packed = (quanta[::2] << 4 | quanta[1::2]).astype(np.uint8)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [rows, columns]}
        if is_nested:
            places, table = random.integers(0, 256, count), np.linspace(-1, 1, 256)
            nested = random.uniform(0.1, 0.3, -(-count // 256))
            scales = table[places] * np.repeat(nested, 256)[:count] + 0.5
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
            checkpoint.tensors |= {
                f"{name}.weight.absmax": torch.from_numpy(places.astype(np.uint8)),
                f"{name}.weight.nested_quant_map": torch.from_numpy(table).float(),
                f"{name}.weight.nested_absmax": torch.from_numpy(nested).float(),
            }
        else:
            scales = random.uniform(0.2, 0.8, count)
            checkpoint.tensors[f"{name}.weight.absmax"] = torch.from_numpy(scales).float()
        text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        checkpoint.tensors |= {
            f"{name}.weight": torch.from_numpy(packed)[:, None],
            f"{name}.weight.quant_map": NF4.clone(),
            f"{name}.weight.quant_state.bitsandbytes__nf4": torch.from_numpy(text),
        }
        values = NF4.double().numpy()[quanta] * np.repeat(scales, block)[: rows * columns]
        checkpoint.weights[name] = values.reshape(rows, columns)

    return add


def add_bnb_int8(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    """Add a matrix of bitsandbytes in 8 bits."""
    quanta, tops = drawn(name).integers(-127, 128, (rows, columns)), drawn(name).uniform(0.2, 0.8, rows)
    checkpoint.tensors |= {
        f"{name}.weight": torch.from_numpy(quanta.astype(np.int8)),
        f"{name}.SCB": torch.from_numpy(tops).float(),
        f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    checkpoint.weights[name] = quanta * tops[:, None] / 127


def _fp8(scale_name: str, scales: Callable[[int, int], torch.Tensor]) -> Add:
    return lambda checkpoint, name, rows, columns: add_fp8(
        checkpoint, name, rows, columns, scales(rows, columns) * 0.003, scale_name
    )


def _blocks(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(-(-rows // 128), -(-columns // 128), generator=torch.Generator().manual_seed(rows + columns)) + 0.5


_FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

FORMATS: dict[str, tuple[Callable[[], Checkpoint], Add]] = {
    "awq": (lambda: awq_checkpoint(64), lambda *args: add_awq(*args, 64)),
    "gptq": (gptq_checkpoint, lambda *args: add_gptq(*args, 32)),
    "gptq symmetric": (lambda: gptq_checkpoint(64), lambda *args: add_gptq(*args, 64, zero=8)),
    "gptq with zeros of 0": (gptq_checkpoint, lambda c, name, *size: add_gptq(c, name, *size, 32, zero=0)),
    "gptq in 8 bits": (lambda: gptq_checkpoint(bits=8), add_gptq_in_8_bits),
    "gptq in 2 bits": (lambda: gptq_checkpoint(bits=2), lambda c, name, *size: add_gptq(c, name, *size, 32, bits=2)),
    "gptq of other order": (gptq_checkpoint, lambda c, name, *size: add_gptq(c, name, *size, 32, shuffle=name)),
    "int4": (lambda: Checkpoint(compressed_config("pack-quantized", num_bits=4)), add_packed(4, 32)),
    "int4 of rows": (lambda: Checkpoint(compressed_config("pack-quantized", num_bits=4)), add_packed(4, 0)),
    "int4 with zeros": (
        lambda: Checkpoint(compressed_config("pack-quantized", num_bits=4)),
        add_packed(4, 64, is_symmetric=False),
    ),
    "int4 of other order": (
        lambda: Checkpoint(compressed_config("pack-quantized", num_bits=4)),
        add_packed(4, 32, shuffles=True),
    ),
    "packed int8": (lambda: Checkpoint(compressed_config("pack-quantized")), add_packed(8, 128)),
    "int8": (lambda: Checkpoint(compressed_config("int-quantized")), add_int8),
    "int8 in groups with zeros": (
        lambda: Checkpoint(compressed_config("int-quantized", strategy="group", group_size=64, symmetric=False)),
        add_int_groups,
    ),
    "naive int4 in bytes": (
        lambda: Checkpoint(compressed_config("naive-quantized", num_bits=4, strategy="group", group_size=32)),
        add_naive_int4,
    ),
    "mxfp4": (
        lambda: Checkpoint(compressed_config("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group")),
        add_mxfp4,
    ),
    "nvfp4": (
        lambda: Checkpoint(
            compressed_config("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
        ),
        add_nvfp4({"values": "weight_packed", "factor": "weight_global_scale", "input": "input_global_scale"}, is_divided=True),
    ),
    "modelopt nvfp4": (
        lambda: Checkpoint({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}),
        add_nvfp4({"values": "weight", "factor": "weight_scale_2", "input": "input_scale"}, is_divided=False),
    ),
    "modelopt fp8": (
        lambda: Checkpoint({"quant_method": "modelopt", "quant_algo": "FP8"}),
        _fp8("weight_scale", lambda *_: torch.tensor(1.0)),
    ),
    "fbgemm fp8": (
        lambda: Checkpoint({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
        _fp8("weight_scale", lambda rows, _: torch.rand(rows, 1) + 0.5),
    ),
    "fp8 of rows": (
        lambda: Checkpoint(compressed_config("float-quantized", type="float")),
        _fp8("weight_scale", lambda rows, _: torch.rand(rows, 1) + 0.5),
    ),
    "fp8 of blocks": (lambda: Checkpoint(_FP8_BLOCKS), _fp8("weight_scale_inv", _blocks)),
    "fp8": (lambda: Checkpoint({"quant_method": "fp8"}), _fp8("weight_scale", lambda *_: torch.tensor(1.0))),
    "nf4": (lambda: Checkpoint(_BNB), add_nf4(64, is_nested=False)),
    "nf4 with nested scales": (lambda: Checkpoint(_BNB), add_nf4(64, is_nested=True)),
    "nf4 of blocks beyond rows": (lambda: Checkpoint(_BNB), add_nf4(4096, is_nested=False)),
    "bitsandbytes int8": (lambda: Checkpoint({"quant_method": "bitsandbytes", "load_in_8bit": True}), add_bnb_int8),
}
"""By name: an empty checkpoint, and what adds a matrix to it."""
