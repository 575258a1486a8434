"""Time warping: finds when tokens are said, from the weights with which a decoder attends to an encoder's output.

Source: transformers' `_extract_token_timestamps` (models/whisper/generation_whisper.py), which follows openai/whisper's
timing.py. The path is computed by diagonals of the matrix, with the values and the choices of transformers' loops.
"""

import numpy as np
import numpy.typing as npt
import torch

Costs = npt.NDArray[np.float64]


def token_starts(weights: torch.Tensor, filter_width: int) -> npt.NDArray[np.int64]:
    """Return for each token the index of the position at which it begins.

    Args:
        weights: [heads, tokens, positions], of heads that follow the audio.
        filter_width: odd number of neighbouring positions of whose weights the median is taken.
    """
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    normal = torch.where(std > 0, (weights - mean) / std, 0.0)
    return warped(-median_filtered(normal, filter_width).mean(0).double().numpy())


def median_filtered(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return the medians of `width` neighbours on the last axis; the ends are mirrored. Fewer values stay as they are."""
    pad = width // 2
    if values.shape[-1] <= pad:
        return values
    padded = torch.nn.functional.pad(values, (pad, pad), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., pad]


def warped(costs: Costs) -> npt.NDArray[np.int64]:
    """Return the first column of each row on the cheapest path [rows, columns] from the first to the last element."""
    num_rows, num_columns = costs.shape
    steps = _steps(costs)
    first = np.zeros(num_rows, np.int64)
    row, column = num_rows, num_columns
    while row and column:
        first[row - 1] = column - 1
        step = steps[row + column, row]
        row, column = row - (step != _LEFT), column - (step != _UP)
    return first


_DIAGONAL, _UP, _LEFT = 0, 1, 2


def _steps(costs: Costs) -> npt.NDArray[np.int8]:
    """Return the last step of the cheapest path to each element: [row + column, row], both counted from 1."""
    num_rows, num_columns = costs.shape
    num_diagonals = num_rows + num_columns + 1
    # Row r moved right by r: a column of this matrix is a diagonal of the costs.
    moved = np.zeros((num_rows, num_rows + num_columns))
    moved[:, :num_columns] = costs
    moved = moved.ravel()[: num_rows * (num_rows + num_columns - 1)].reshape(num_rows, -1)
    steps = np.full((num_diagonals, num_rows + 1), _LEFT, np.int8)
    before_last, last = np.full((2, num_rows + 1), np.inf, np.float32)
    before_last[0] = 0.0
    for diagonal in range(2, num_diagonals):
        low, high = max(1, diagonal - num_columns), min(num_rows, diagonal - 1) + 1
        across, above, left = before_last[low - 1 : high - 1], last[low - 1 : high - 1], last[low:high]
        is_across, is_above = (across < above) & (across < left), (above < across) & (above < left)
        cheapest = np.where(is_across, across, np.where(is_above, above, left))
        steps[diagonal, low:high] = np.where(is_across, _DIAGONAL, np.where(is_above, _UP, _LEFT))
        now = np.full(num_rows + 1, np.inf, np.float32)
        now[low:high] = moved[low - 1 : high - 1, diagonal - 2] + cheapest
        before_last, last = last, now
    return steps
