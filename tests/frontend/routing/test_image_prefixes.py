"""Prefixes with images: equal placeholders of different images are different prefixes."""

import pytest

from tests.frontend.routing.test_router import AFFINITY, Engine
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.routing.block_keys import block_keys, first_parent, media_keys
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.frontend.routing.router import Router
from tetrad.services.rpc.columns import pack_u32

PLACEHOLDER = 9
PROMPT = pack_u32([PLACEHOLDER] * 160)


def image(name, offset=0, length=160):
    return MediaFeature("image", name, offset, length, 0, None)


@pytest.mark.parametrize(
    ("features", "keys"),
    [
        ((), []),
        ((image("a", 4, 4),), [b"", b"a\0", b""]),
        ((image("a", 3, 2),), [b"a\0", b"a\0", b""]),
        ((image("a", 0, 2), image("b", 2, 9)), [b"a\0b\0", b"b\0", b"b\0"]),
        ((image("a", 11, 9),), [b"", b"", b"a\0"]),
        ((image("a", 0, 0),), [b"a\0", b"", b""]),
    ],
)
def test_each_block_has_the_images_that_it_touches(features, keys):
    """Of 14 tokens the last two fill no block."""
    assert media_keys(features, 4, 14) == keys


def test_events_of_an_engine_core_name_the_same_blocks():
    memory = PrefixMemory()
    memory.begin(4, num_blocks=10)
    column, extra = pack_u32(range(12)), [b"", b"a\0", b""]

    memory.store([b"0", b"1", b"2"], None, column, "", extra_keys=extra)

    def num_held(*features):
        return memory.num_held(block_keys(column, 4, first_parent(""), media_keys(features, 4, 12)))

    assert num_held(image("a", 4, 4)) == 3
    assert num_held(image("b", 4, 4)) == 1
    assert num_held() == 1


def test_prompts_with_the_same_image_stay_together_and_others_do_not():
    """Its number of requests outweighs being the home of a new prefix, but not holding the whole prompt."""
    engines, router = [Engine(b"first"), Engine(b"second")], Router(AFFINITY)
    first = router.choose(engines, PROMPT, features=(image("a"),))
    first.num_requests += 10

    assert router.choose(engines, PROMPT, features=(image("a"),)) is first
    assert all(router.choose(engines, PROMPT, features=(image(name),)) is not first for name in "bcd")
