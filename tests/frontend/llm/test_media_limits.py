"""MediaLimits: vLLM's rules for embeddings of media, with and without the operator's permission and limits."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from tetrad.frontend.llm.media_limits import MediaLimits
from tetrad.frontend.media.items import ModalityFacts
from tetrad.services.errors import InvalidRequest


@dataclass
class Item:
    is_embeds: bool
    modality: str = "image"
    where: str = "here"


FILE, EMBEDS = Item(is_embeds=False), Item(is_embeds=True)


def check(*items, takes_embeds=True, **most):
    engines = SimpleNamespace(info=SimpleNamespace(modalities=(ModalityFacts("image"),)))
    limits = MediaLimits("model", most, [ModalityFacts("image")], engines, takes_embeds=takes_embeds)
    limits.check(items, kwargs={})


@pytest.mark.parametrize(("items", "most"), [([EMBEDS] * 2, 2), ([FILE] * 2, 2), ([EMBEDS] * 5, 0)])
def test_items_within_their_limit_are_taken_and_a_limit_of_0_concerns_files_alone(items, most):
    check(*items, image=most)


@pytest.mark.parametrize(
    ("items", "most", "text"),
    [
        ([FILE], 0, r"At most 0 image\(s\) may be provided in one prompt\. Set `--limit-mm-per-prompt`"),
        ([EMBEDS] * 3, 2, r"At most 2 image\(s\) may be provided in one prompt"),
        ([EMBEDS, FILE], 0, "Mixing raw image and embedding inputs is not allowed"),
        ([FILE, EMBEDS], 5, "Mixing raw image and embedding inputs is not allowed"),
    ],
)
def test_others_are_refused(items, most, text):
    with pytest.raises(InvalidRequest, match=text):
        check(*items, image=most)


def test_embeddings_need_the_operator_s_permission():
    with pytest.raises(InvalidRequest, match="You must set `--enable-mm-embeds` to input `image_embeds`") as refused:
        check(EMBEDS, takes_embeds=False)

    assert refused.value.field == "here"
