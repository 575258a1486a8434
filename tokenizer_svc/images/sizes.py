"""Sizes: the largest number of embeddings of an image, for processors that choose the size by the number of pixels."""

import math

from tetrad.tokenizer_svc.images.model import ImageModel

_MAX_ASPECT_RATIO = 200
"""Qwen-VL's and GLM-V's processors refuse longer images."""


def max_merged_patches(model: ImageModel) -> int:
    """Return the number of merged patches of the largest image of Qwen-VL's `smart_resize`.

    It keeps the pixels within [shortest_edge, longest_edge], and both sides multiples of a block. It exceeds them in two cases:
    a long image has at least one row of blocks, and a small one is enlarged to whole blocks.
    """
    block: int = model.settings["patch_size"] * model.settings["merge_size"]
    most: int = model.settings["size"]["longest_edge"]
    least: int = model.settings["size"]["shortest_edge"]
    single_row = math.isqrt(_MAX_ASPECT_RATIO * most) // block
    least_blocks = least / block**2
    # Sides of a and b blocks become at most a + 1 and b + 1; the sum of both is largest for the longest image.
    ratio = math.sqrt(_MAX_ASPECT_RATIO)
    enlarged = int(least_blocks + math.sqrt(least_blocks) * (ratio + 1 / ratio) + 1)
    return max(most // block**2, single_row, enlarged)
