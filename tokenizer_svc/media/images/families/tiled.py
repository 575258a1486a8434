"""SmolVLM and Idefics3: an image is cut into tiles, each behind a token of its row and column; the whole image follows.

Source: transformers' models/smolvlm/processing_smolvlm.py, `get_image_prompt_string`.
"""

from functools import partial

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    [rows], [cols] = image.integers("rows"), image.integers("cols")
    fake = model.named("fake_image_token", "<fake_token_around_image>")
    whole = model.named("global_image_token", "<global-img>")
    mark = model.mark
    lines = ["".join(f"{fake}<row_{row}_col_{col}>{mark}" for col in range(1, cols + 1)) for row in range(1, rows + 1)]
    before = "".join(f"{line}\n" for line in [*lines, ""]) if rows else ""
    return Expansion(f"{before}{fake}{whole}{mark}{fake}", rows * cols + 1, _tile_embeds(model))


def _tile_embeds(model: ImageModel) -> int:
    given = model.processor.get("image_seq_len")
    if given is not None:
        return int(given)
    side = model.vision["image_size"] // model.vision["patch_size"]
    return int(side**2 / model.config.get("scale_factor", 2) ** 2)


def _max_embeds(model: ImageModel) -> int:
    if not model.settings.get("do_image_splitting", True):
        return _tile_embeds(model)
    longest, tile = model.settings["size"]["longest_edge"], model.settings["max_image_size"]["longest_edge"]
    # An odd edge may be rounded up to an even one.
    side = -(-(longest + longest % 2) // tile)
    return _tile_embeds(model) * (1 if side == 1 else side * side + 1)


TILED = partial(Family, expand=_expand, max_embeds=_max_embeds, kwargs=("size", "do_image_splitting", "do_resize"))
