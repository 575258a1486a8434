"""Products with few rows (worker_svc/kernels/few_rows.py), at the sizes of one layer: parity, rates and trials."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from benchmarks.gpu_sections import exact
from benchmarks.gpu_sections.bench import Bench, Work
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors
from benchmarks.gpu_sections.matrices import QWEN_SHAPES, random_weight
from benchmarks.gpu_sections.parity_case import Case
from benchmarks.gpu_sections.trial import Trial
from benchmarks.gpu_sections.trials_products import TABLE
from tetrad.worker_svc.cuda.fused_products import MOST_ROWS
from tetrad.worker_svc.kernels.added_product import added_product
from tetrad.worker_svc.kernels.normed_products import normed_gated, normed_qkv
from tetrad.worker_svc.kernels.scaled_stream import Scaled, scale_stream
from tetrad.worker_svc.kernels.split_k import make_tickets
from tetrad.worker_svc.kernels.tile_shapes import TileShape, key_of, shape_by_rule, shapes_of, whole_shape_by_rule

_EPS = 1e-6
_HEADS = (12, 2, 128)
_TINY_HEADS = (2, 1, 16)
_TINY_SHAPES = {"qkv": (64, 48), "output": (48, 32), "gate_up": (80, 48), "down": (48, 40)}
_KERNELS = {"qkv": "normed_qkv", "output": "added_product", "gate_up": "normed_gated", "down": "added_product"}
_L2_BYTES = 100 << 20
Product = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Layer:
    """The inputs of a layer's four products.

    Attributes:
        bench: the device.
        num_rows: T.
    """

    bench: Bench
    num_rows: int

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Name of a product -> numbers of its outputs and inputs."""
        return dict(self.bench.pick(QWEN_SHAPES, _TINY_SHAPES))

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and weights: the interpreter rounds bfloat16 in its own way."""
        return torch.bfloat16 if self.bench.is_gpu else torch.float32

    def stream(self) -> tuple[torch.Tensor, torch.Tensor, Scaled]:
        """Return a residual stream [T, D], the weight of a norm, and the stream before the norm."""
        size = self.shapes["qkv"][1]
        residual = self.bench.normal(self.num_rows, size, dtype=self.dtype)
        norm = self.bench.normal(size, dtype=self.dtype, seed=2)
        return residual, norm, scale_stream(residual, norm)

    def weight(self, name: str) -> torch.Tensor:
        """Return a random weight."""
        return random_weight(self.bench, self.shapes[name], self.dtype)

    def works(self, name: str, shape: TileShape | None = None) -> Sequence[Work]:
        """Return the same product with different weights, more than the card's L2 can hold; None: the device's own tiles."""
        weight = self.weight(name)
        copies = self.bench.pick(1 + _L2_BYTES // weight.nbytes, 1)
        make = {"qkv": self._qkv, "gate_up": self._gate_up}.get(name, self._added)
        run = make(name, shape or self.tiles(name))
        return [partial(run, weight.clone()) for _ in range(copies)]

    def tiles(self, name: str) -> TileShape:
        """Return the tiles that the device uses for a product."""
        rule = shape_by_rule if _KERNELS[name] == "added_product" else whole_shape_by_rule
        shape = shapes_of(self.bench.device).of(_KERNELS[name], self.num_rows, *self.shapes[name], rule)
        assert shape is not None, "torch has no such product"
        return shape

    def _qkv(self, _: str, shape: TileShape) -> Product:
        num_heads, num_kv_heads, head_dim = self.bench.pick(_HEADS, _TINY_HEADS)
        cos_sin = self.bench.normal(self.num_rows, head_dim)
        slots = torch.arange(self.num_rows, device=self.bench.device)
        cache = self.bench.normal(self.num_rows, 16, 2, num_kv_heads, head_dim, dtype=self.dtype)
        scaled = self.stream()[2]
        return lambda weight: normed_qkv(scaled, weight, None, cos_sin, slots, cache, num_heads, eps=_EPS, shape=shape)

    def _added(self, name: str, shape: TileShape) -> Product:
        residual, norm, _ = self.stream()
        x = self.bench.normal(self.num_rows, self.shapes[name][1], dtype=self.dtype, seed=3)
        tickets = make_tickets(self.bench.device)
        return lambda weight: added_product(x, weight, None, residual, norm, shape=shape, tickets=tickets)

    def _gate_up(self, _: str, shape: TileShape) -> Product:
        scaled = self.stream()[2]
        return lambda weight: normed_gated(scaled, weight, eps=_EPS, shape=shape)


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases of parity: what a product adds to the residual stream, and gates."""
    for num_rows in bench.pick((1, 16, 32), (3,)):
        layer = Layer(bench, num_rows)
        for name in ("output", "down"):
            yield Case("added_product", f"{num_rows} rows, {name}", partial(_added, layer, name))
        yield Case("normed_gated", f"{num_rows} rows", partial(_gated, layer))


def _added(layer: Layer, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    residual, norm, _ = layer.stream()
    x, weight = layer.bench.normal(layer.num_rows, layer.shapes[name][1], dtype=layer.dtype, seed=3), layer.weight(name)
    expected = residual.double() + x.double() @ weight.double().T
    added_product(x, weight, None, residual, norm, shape=layer.tiles(name), tickets=make_tickets(layer.bench.device))
    return residual, expected


def _gated(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    residual, norm, scaled = layer.stream()
    weight = layer.weight("gate_up")
    wide = exact.rms_norm(residual, norm, _EPS) @ weight.double().T
    return normed_gated(scaled, weight, eps=_EPS, shape=layer.tiles("gate_up")), exact.gated(wide, gelu=False)


def run(bench: Bench, floors: Floors, findings: Findings) -> None:
    """Add the table of rates."""
    rows = []
    for num_rows in bench.pick([1, 8, 16, MOST_ROWS], [2]):
        layer = Layer(bench, num_rows)
        times = [bench.seconds(layer.works(name)) for name in layer.shapes]
        floor_s = sum(floors.bytes_s(layer.weight(name).nbytes) for name in layer.shapes)
        cells = [f"{seconds * 1e6:.1f}" for seconds in (*times, sum(times))]
        rows.append([str(num_rows), *cells, f"{floor_s / sum(times):.2f}"])
    findings.text("Fused products of a layer with few rows, bf16, microseconds; share: of the time of reading the weights.")
    findings.rows(["rows", *QWEN_SHAPES, "layer", "share"], rows)


def trials(bench: Bench) -> Iterator[Trial]:
    """Yield trials of tiles for one row, a tile of 16 rows, and the most rows."""
    for num_rows in bench.pick((1, 16, MOST_ROWS), (2,)):
        layer = Layer(bench, num_rows)
        for name, sizes in layer.shapes.items():
            options = list(_options(num_rows, *sizes, is_split=_KERNELS[name] == "added_product"))
            name_of_row = key_of(_KERNELS[name], num_rows, *sizes)
            yield Trial(TABLE, name_of_row, bench.pick(options, options[:2]), partial(layer.works, name))


def _options(num_rows: int, num_outputs: int, num_columns: int, *, is_split: bool) -> Iterator[TileShape]:
    """Yield the shapes to measure: those whose loads in flight fit into shared memory."""
    rows = 16 if num_rows <= 16 else 32
    splits = [each for each in (1, 2, 4, 8) if is_split or each == 1]
    sizes = product((16, 32, 64), (64, 128, 256), splits, (2, 4, 8), (3, 4, 6))
    for outputs, columns, parts, warps, stages in sizes:
        fits = (outputs + rows) * columns * 2 * stages <= 150 << 10
        is_whole = outputs <= num_outputs and columns * parts <= max(num_columns, columns)
        if fits and is_whole and outputs * columns >= 256 * warps:
            yield TileShape(rows, outputs, columns, parts, warps, stages)
