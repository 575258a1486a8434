"""Quantized checkpoints, written from the formats' definitions, value by value; and their exact weights."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.checkpoint.packed_weights.formats import open_reader
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.unpacked import UnpackedSource
from tetrad.worker_svc.cuda.linears import DeviceLinears

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns a word has in its lowest 4 bits, in the next, ..."""


@dataclass
class Checkpoint:
    """Tensors and a config to be written; and weights, in float64, of what was put into them."""

    quantization: object = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def open(self, directory: Path, requested: str = "", dtype: torch.dtype = torch.float32) -> DeviceLinears:
        """Write the files and read them as the device does."""
        save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps({"quantization_config": self.quantization}))
        source: WeightSource = open_source(directory)
        if self.quantization is not None:
            source = UnpackedSource(source, open_reader(self.quantization))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        loader = WeightLoader(source, lambda *_: None)
        return DeviceLinears(source.config["quantization_config"], requested, loader, device, dtype)

    def add_floats(self, name: str, rows: int, columns: int, *, bias: bool = False) -> None:
        """Add a matrix that is not quantized."""
        self.weights[name] = drawn(name).normal(size=(rows, columns))
        self.tensors[f"{name}.weight"] = torch.from_numpy(self.weights[name]).float()
        if bias:
            self.tensors[f"{name}.bias"] = torch.from_numpy(drawn(name).normal(size=rows)).float()


def drawn(name: str) -> np.random.Generator:
    """Return a generator that is the same for the same name."""
    return np.random.default_rng(list(name.encode()))


def awq_checkpoint(group: int = 32) -> Checkpoint:
    """Return an empty one, as AutoAWQ has its config."""
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Checkpoint(config)


def add_awq(checkpoint: Checkpoint, name: str, rows: int, columns: int, group: int) -> None:
    """Add a matrix of `rows` outputs. Weight [row, column] is (q[column, row] - zero[group, row]) * scale[group, row]."""
    random = drawn(name)
    quanta, zeros = random.integers(0, 16, (columns, rows)), random.integers(0, 16, (columns // group, rows))
    scales = torch.from_numpy(random.uniform(0.01, 0.1, zeros.shape)).half()

    def words(values: np.ndarray) -> torch.Tensor:
        packed = np.zeros((len(values), rows // 8), np.uint32)
        for word in range(rows // 8):
            for place, column in enumerate(AWQ_ORDER):
                packed[:, word] |= (values[:, 8 * word + column] << 4 * place).astype(np.uint32)
        return torch.from_numpy(packed.view(np.int32))

    checkpoint.tensors |= {f"{name}.qweight": words(quanta), f"{name}.qzeros": words(zeros), f"{name}.scales": scales}
    groups = np.arange(columns) // group
    checkpoint.weights[name] = ((quanta - zeros[groups]) * scales.double().numpy()[groups]).T


def gptq_checkpoint(group: int = 32, bits: int = 4, **changes: object) -> Checkpoint:
    """Return an empty one, as AutoGPTQ has its config."""
    return Checkpoint({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, **changes})


def add_gptq(
    checkpoint: Checkpoint,
    name: str,
    rows: int,
    columns: int,
    group: int,
    *,
    bits: int = 4,
    stored_less: int = 1,
    shuffle: str = "",
    zero: int | None = None,
    least_zero: int = 1,
) -> None:
    """Add a matrix of `rows` outputs.

    Weight [row, column] is (q[column, row] - zero[g, row]) * scale[g, row], where g is the column's group.

    Args:
        checkpoint: to which it is added.
        name: of the matrix.
        rows: outputs.
        columns: inputs.
        group: columns of a group.
        bits: of a value.
        stored_less: what stored zeros are short of.
        shuffle: a name: groups are in an order drawn for it; "": in order.
        zero: of all; None: drawn.
        least_zero: smallest zero that is drawn.
    """
    random = drawn(name)
    quanta = random.integers(0, 1 << bits, (columns, rows))
    zeros = random.integers(least_zero, 1 << bits, (columns // group, rows))
    if zero is not None:
        zeros[:] = zero
    scales = torch.from_numpy(random.uniform(0.01, 0.1, zeros.shape)).half()
    groups = np.arange(columns) // group
    if shuffle:
        groups = drawn(shuffle).permutation(groups)
    per_word = 32 // bits
    weight_words = np.zeros((columns // per_word, rows), np.uint32)
    for column in range(columns):
        weight_words[column // per_word] |= (quanta[column] << bits * (column % per_word)).astype(np.uint32)
    zero_words = np.zeros((len(zeros), rows // per_word), np.uint32)
    for row in range(rows):
        zero_words[:, row // per_word] |= (zeros[:, row] << bits * (row % per_word)).astype(np.uint32)
    # GPTQModel subtracts whole words, so a zero of 0 borrows from the next one.
    zero_words -= np.uint32(sum(stored_less << bits * place for place in range(per_word)))
    checkpoint.tensors |= {
        f"{name}.qweight": torch.from_numpy(weight_words.view(np.int32)),
        f"{name}.qzeros": torch.from_numpy(zero_words.view(np.int32)),
        f"{name}.scales": scales,
        f"{name}.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    checkpoint.weights[name] = ((quanta - zeros[groups]) * scales.double().numpy()[groups]).T


def add_fp8(checkpoint: Checkpoint, name: str, rows: int, columns: int, scales: torch.Tensor, scale_name: str) -> None:
    """Add a matrix in e4m3. `scales` multiply it as they are broadcast, or by blocks of the config (128 x 128)."""
    stored = torch.from_numpy(drawn(name).normal(size=(rows, columns)) * 100).to(torch.float8_e4m3fn)
    wide = scales.double()
    if wide.dim() == 2 and wide.shape != (rows, 1):
        known = checkpoint.quantization.get("weight_block_size") if isinstance(checkpoint.quantization, dict) else None
        high, broad = known or (128, 128)
        wide = wide.repeat_interleave(high, 0)[:rows].repeat_interleave(broad, 1)[:, :columns]
    elif wide.dim() == 1 and len(wide) > 1:
        wide = wide[:, None]
    checkpoint.tensors |= {f"{name}.weight": stored, f"{name}.{scale_name}": scales}
    checkpoint.weights[name] = (stored.double() * wide).numpy()


def activations(num_rows: int, columns: int) -> torch.Tensor:
    """Return activations [num_rows, columns] on the device."""
    values = torch.from_numpy(drawn("x").normal(size=(num_rows, columns))).float()
    return values.cuda() if torch.cuda.is_available() else values


def exact_activations(num_rows: int, columns: int) -> torch.Tensor:
    """Return activations that fp8 has, whose largest of 128 is 448: quantizing leaves them as they are.

    Triton's interpreter rounds others up to a power of two as if they were half of it.
    """
    values = (activations(num_rows, columns) * 100).to(torch.float8_e4m3fn).float()
    values[:, ::128] = 448.0
    return values


def assert_multiplies(layer, checkpoint: Checkpoint, names: str, x: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Check that a layer is the product with the weights of these names, whatever they were stored as."""
    weight = np.concatenate([checkpoint.weights[name] for name in names])
    expected = x.double().cpu().numpy() @ weight.T
    found = layer(x).double().cpu().numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
