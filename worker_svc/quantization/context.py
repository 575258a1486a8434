"""Product context: device, type, tile shapes and tickets that all products of one model share."""

from dataclasses import dataclass

import torch

from tetrad.worker_svc.kernels.split_k import make_tickets
from tetrad.worker_svc.kernels.tile_shapes import TileShapes, shapes_of

_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, eq=False, slots=True)
class ProductContext:
    """The values that all products of a model share; created once for each model.

    Attributes:
        device: device of all tensors.
        dtype: type of activations.
        shapes: shapes of tiles.
        tickets: see kernels.split_k; for products of one stream.
        has_fp8: whether the device can multiply fp8; if not, kernels convert fp8 weights when they read them.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: TileShapes
    tickets: torch.Tensor
    has_fp8: bool


def product_context(device: torch.device, dtype: torch.dtype) -> ProductContext:
    """Return the context of a device. Host memory, used as a device in tests, has fp8, because Triton's interpreter has it."""
    has_fp8 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
    return ProductContext(device, dtype, shapes_of(device), make_tickets(device), has_fp8)
