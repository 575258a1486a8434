"""Context of all products of one device: where they run, their type, their tiles."""

from dataclasses import dataclass

import torch

from tetrad.worker_svc.kernels.split_k import make_tickets
from tetrad.worker_svc.kernels.tile_shapes import TileShapes, shapes_of

_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, eq=False, slots=True)
class ProductContext:
    """Made once a model.

    Attributes:
        device: of all tensors.
        dtype: of activations.
        shapes: of tiles.
        tickets: see kernels.split_k; for products of one stream.
        has_fp8: whether the device multiplies fp8; where it does not, fp8 weights are widened on their way.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: TileShapes
    tickets: torch.Tensor
    has_fp8: bool


def product_context(device: torch.device, dtype: torch.dtype) -> ProductContext:
    """Return the context of a device. Host memory, which stands in for one in tests, has fp8: Triton's interpreter does."""
    has_fp8 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
    return ProductContext(device, dtype, shapes_of(device), make_tickets(device), has_fp8)
