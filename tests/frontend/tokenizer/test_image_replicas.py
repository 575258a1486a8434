"""Images and several tokenizers: turns of a conversation go to the tokenizer that has kept its images."""

import asyncio
import itertools
import time

import pytest

from tests.frontend.fakes.images import IMAGES
from tetrad.services.errors import InvalidRequest, Unavailable


@pytest.fixture
async def llm(connect, engine, tokenizer, second):
    tokenizer.modalities = second.modalities = engine.modalities = IMAGES
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target), tokenizer_stall_s=0.2)
    async with asyncio.timeout(10):
        async for report in llm.readiness.follow():
            if not any(each.problem for each in report.dependencies):
                break
    return llm


async def ask(llm, *images):
    """Render a conversation with images: (file, name), either may be None."""
    parts = [_part(*image) for image in images]
    return await llm.texts.encode_chat([{"role": "user", "content": parts}])


def _part(file, name):
    if file is None:
        return {"type": "image_url", "image_url": None, "uuid": name}
    return {"type": "image", "image": file, "uuid": name}


def with_logo(*contents):
    """Return a conversation that begins with a logo, which all conversations have; contents of users and answers follow."""
    roles = itertools.cycle(["user", "assistant"])
    logo = {"role": "system", "content": [{"type": "text", "text": str(time.time())}, _part(b"logo", None)]}
    return [logo, *({"role": role, "content": content} for role, content in zip(roles, contents, strict=False))]


@pytest.mark.parametrize(
    "first",
    [
        lambda number: [_part(b"file %d" % number, None), {"type": "text", "text": "What is it?"}],
        lambda number: f"What is {number}?",
    ],
    ids=["other images", "other texts"],
)
async def test_the_turns_of_a_conversation_go_to_one_tokenizer_and_others_to_any(llm, tokenizer, second, first):
    for number in range(12):
        for contents in ((), ("A cat.", [_part(b"x", None)]), ("A cat.", [_part(b"x", None)], "Two.", "Why?")):
            await llm.texts.encode_chat(with_logo(first(number), *contents))

    counts = [len(each.rendered) for each in (tokenizer, second)]
    assert sum(counts) == 36
    assert all(count and count % 3 == 0 for count in counts)


async def test_a_conversation_whose_images_begin_late_stays_with_one_tokenizer(llm, tokenizer, second):
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [_part(b"a", None)]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [_part(b"b", None)]},
    ]
    for _ in range(4):
        await llm.texts.encode_chat(turns[:3])
        await llm.texts.encode_chat(turns)

    assert sorted(len(each.rendered) for each in (tokenizer, second)) == [0, 8]


async def test_an_image_that_is_named_is_found_on_any_tokenizer(llm, tokenizer, second):
    """The names go to either tokenizer by their first image, and the other one has kept `b` of half of these."""
    for number in range(8):
        await ask(llm, (b"a", f"a{number}"), (b"b", f"b{number}"))

    for number in range(8):
        await ask(llm, (None, f"b{number}"))


async def test_an_image_that_no_tokenizer_has_is_refused_by_all(llm, tokenizer, second):
    with pytest.raises(InvalidRequest, match="Cache miss for image at index 1 but data is not provided") as refused:
        await ask(llm, (b"a", "a"), (None, "nowhere"))

    assert refused.value.field == "messages[0].content[1]"
    assert len(tokenizer.rendered) == len(second.rendered) == 1


async def test_a_slow_image_is_not_given_to_a_second_tokenizer(llm, tokenizer, second):
    tokenizer.hung.clear()
    second.hung.clear()
    asking = asyncio.create_task(ask(llm, (b"a", None)))
    await asyncio.sleep(0.5)
    num_calls = len(tokenizer.rendered) + len(second.rendered)
    tokenizer.hung.set()
    second.hung.set()

    await asking
    assert num_calls == 1


@pytest.mark.parametrize("is_alive", [True, False])
async def test_images_wait_for_a_tokenizer_that_is_busy_but_not_for_one_that_hangs(connect, tokenizer, engine, is_alive):
    tokenizer.modalities = engine.modalities = IMAGES
    llm = await connect(recovery_timeout_s=0.4)
    tokenizer.hung.clear()
    tokenizer.answers_facts = is_alive

    asking = asyncio.create_task(ask(llm, (b"cat", None)))
    await asyncio.wait([asking], timeout=2)
    is_waiting = not asking.done()
    tokenizer.hung.set()

    assert is_waiting == is_alive
    if is_alive:
        assert (await asking)["mm_features"]
    else:
        with pytest.raises(Unavailable, match=r"did not answer within 0\.4 s"):
            await asking
