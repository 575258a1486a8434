"""Cutting: cuts a recording where it is quiet. Pure; runs in the speech process.

Source: vLLM's `split_audio` (vllm/multimodal/audio.py), so that recordings are cut at the same samples.
"""

import numpy as np
from numpy.typing import NDArray

BOUNDS = "bounds"
"""Name of the speech process's tensor with the result of `cut`; its others have a first dimension of pieces."""
_SEARCHED_S = 1.0
"""Seconds at the end of a piece in which the quietest place is looked for."""
_WINDOW_S = 0.1
"""Length of the places that are compared: 1600 samples at 16 kHz."""

Samples = NDArray[np.float32]


def cut(samples: Samples, sampling_rate: int, max_seconds: float) -> list[int]:
    """Return the indices of the samples with which pieces begin, and the number of samples at the end.

    A recording that fits one piece is not cut; an empty one has no piece.

    Args:
        samples: [N], the recording.
        sampling_rate: samples of a second.
        max_seconds: maximum length of a piece.
    """
    size, searched = int(max_seconds * sampling_rate), int(min(_SEARCHED_S, max_seconds / 2) * sampling_rate)
    window = min(int(_WINDOW_S * sampling_rate), searched // 2)
    bounds = [0]
    while len(samples) - bounds[-1] > size:
        end = bounds[-1] + size
        bounds.append(end - searched + _quietest(samples[end - searched : end], window))
    return [*bounds, len(samples)] if len(samples) else []


def _quietest(samples: Samples, window: int) -> int:
    """Return the index with which the quietest window begins; windows do not overlap, and the last one is not among them."""
    num_windows = max(1, -(-(len(samples) - window) // window))
    windows = samples[: num_windows * window].reshape(num_windows, window)
    return int(np.argmin(np.square(windows).mean(axis=1))) * window
