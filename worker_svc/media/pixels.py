"""Pixels: normalises 8-bit images as the model's preprocessor_config.json says.

The tokenizer service sends pixels as bytes, a quarter of the size of float32. Values equal those of transformers' image
processors: 256 of them for each channel, computed once.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import Floats


class Normalization:
    """The value of each byte in each channel.

    Args:
        mean, std: of each channel; None: values are not normalised.
        factor: multiplies bytes before that; None: they are not rescaled.
        is_rounded: whether each step rounds values that are both rescaled and normalised to bfloat16, as Llama 4's processor.
    """

    def __init__(
        self,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        factor: float | None,
        *,
        is_rounded: bool = False,
    ) -> None:
        # The same steps and types as transformers' `rescale` and `normalize`.
        values = np.arange(256).astype(np.float64) * (1.0 if factor is None else factor)
        rescaled = values.astype(np.float32)
        if mean is None or std is None:
            self._table: Floats = np.tile(rescaled, (3, 1))
        else:
            rounded = _bfloat16 if is_rounded and factor is not None else _float32
            means, deviations = rounded(np.array(mean, np.float32)[:, None]), rounded(np.array(std, np.float32)[:, None])
            self._table = rounded(rounded(rounded(rescaled) - means) / deviations)

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return len(self._table)

    def of(self, pixels: npt.NDArray[np.generic], axis: int) -> Floats:
        """Return normalised pixels in float32; floats are returned as they are.

        Args:
            pixels: uint8, or float32 that are normalised already.
            axis: the axis of channels.

        Raises InvalidRequest for another type or number of channels.
        """
        if pixels.dtype == np.float32:
            return pixels.astype(np.float32)  # a copy: the pixels may be in a message
        if pixels.dtype != np.uint8 or pixels.shape[axis] != self.num_channels:
            raise InvalidRequest(
                f"Pixels of type {pixels.dtype} in {pixels.shape[axis]} channels; the model takes uint8 in {self.num_channels}."
            )
        channels = np.moveaxis(pixels, axis, 0)
        values = np.stack([table[channel] for table, channel in zip(self._table, channels, strict=True)])
        return np.ascontiguousarray(np.moveaxis(values, 0, axis))


def _float32(values: Floats) -> Floats:
    return values


def _bfloat16(values: Floats) -> Floats:
    """Return the nearest values of bfloat16, of two equally near ones the even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    halves = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + halves) & np.uint32(0xFFFF0000)).view(np.float32)
