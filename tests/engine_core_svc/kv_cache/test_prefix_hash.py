"""The hash chain of a request's blocks: equal content has equal hashes, in every process and language."""

import hashlib
from array import array
from dataclasses import replace

import pytest

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.media import MediaSpan
from tetrad.engine_core_svc.core.payload import NO_PAYLOAD
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.prefix_hash import ROOT_HASH, block_key, extend_block_hashes

TOKENS = list(range(7, 17))
ROW = bytes(range(8))


def adapter(name="a", path="/a", digest=b"files"):
    return Adapter(LoraRef(name, 1, path), 1, digest)


def hashes(tokens=TOKENS, **fields):
    request = Request(1, "r", list(tokens), len(tokens), 99, **fields)
    extend_block_hashes(request, 4)
    return request.block_hashes


def chain(*extras, tokens=TOKENS):
    """Return the hashes of whole blocks of 4 tokens, each with its extra keys."""
    parent, found = ROOT_HASH, []
    for index, extra in enumerate(extras):
        ids = array("I", tokens[4 * index : 4 * index + 4]).tobytes()
        parent = hashlib.sha256(parent + ids + extra).digest()
        found.append(parent)
    return found


def embedded(flags):
    return replace(NO_PAYLOAD, prompt_embeds=PromptEmbeds(ROW * flags.count(0), 2, flags))


def test_full_blocks_have_hashes_that_chain():
    assert hashes() == chain(b"", b"")
    assert hashes()[1] != chain(b"", tokens=TOKENS[4:])[0]


def test_hashes_are_added_as_blocks_become_full():
    request = Request(1, "r", TOKENS[:5], 5, 99)
    extend_block_hashes(request, 4)
    request.token_ids += TOKENS[5:]
    extend_block_hashes(request, 4)

    assert request.block_hashes == chain(b"", b"")


def test_salt_and_adapter_are_keys_of_the_first_block():
    lora = b"lora:filesa\0/a\0"

    assert hashes(cache_salt="s") == chain(b"cache_salt:s", b"")
    assert hashes(adapter=adapter()) == chain(lora, b"")
    assert hashes(adapter=adapter(), cache_salt="s") == chain(lora + b"cache_salt:s", b"")


@pytest.mark.parametrize("other", [{"name": "b"}, {"path": "/b"}, {"digest": b"other files"}], ids=str)
def test_another_name_path_or_content_is_another_adapter(other):
    assert hashes(adapter=adapter()) != hashes(adapter=adapter(**other))


def test_vectors_are_keys_of_their_own_block():
    flags = bytes([1, 1, 1, 1, 1, 0, 1, 1, 0, 1])
    key = hashlib.sha256(flags[4:8] + ROW).digest()

    assert hashes(payload=embedded(flags)) == chain(b"", b"prompt_embeds:" + key)


def test_vectors_of_the_first_block_stand_before_its_other_keys():
    flags = bytes([0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    key = hashlib.sha256(flags[:4] + ROW).digest()

    found = hashes(payload=embedded(flags), adapter=adapter(), cache_salt="s")

    assert found == chain(b"prompt_embeds:" + key + b"lora:filesa\0/a\0cache_salt:s", b"")


def test_media_are_keys_of_the_blocks_that_have_their_tokens():
    media = (
        MediaSpan("a", "image", "ha", 2, 3, 2, is_embed=b"\1\0\1"),
        MediaSpan("b", "image", "hb", 6, 2, 2),
        MediaSpan("c", "image", "hc", 8, 2, 2),
    )

    found = hashes(payload=replace(NO_PAYLOAD, media=media))

    first = b"mm:a\0ha\x002\x002\0\1\0"
    second = b"mm:a\0ha\0-2\x001\0\1" + b"mm:b\0hb\x002\x000\0"
    assert found == chain(first, second)


@pytest.mark.parametrize("other", [{"identifier": "x"}, {"content_hash": "x"}, {"offset": 1}, {"is_embed": b"\1\1\0"}], ids=str)
def test_another_image_or_place_is_another_content(other):
    span = MediaSpan("a", "image", "ha", 0, 3, 2, is_embed=b"\1\0\1")

    assert (
        hashes(payload=replace(NO_PAYLOAD, media=(span,)))[0]
        != hashes(payload=replace(NO_PAYLOAD, media=(replace(span, **other),)))[0]
    )


def test_each_group_has_a_key_of_its_own_and_the_first_one_the_hash_itself():
    assert [block_key(b"h", group) for group in (0, 1, 258)] == [b"h", b"h\0\0\0\1", b"h\0\0\1\2"]
