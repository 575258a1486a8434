"""Images whose tokens attend to each other: no step ends inside one, whatever protects other requests."""

import pytest

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.media_values import feature, prompt_with
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import types_pb2

WHOLE = [types_pb2.ModalityInfo(modality="image", max_embeds_per_item=200, is_whole=True)]
FEATURES = [feature("a", 3, 40), feature("b", 50, 7), feature("c", 57, 30)]
PROMPT = prompt_with(9, *FEATURES, size=120)


@pytest.fixture
def start(directory):
    def start(**settings: object) -> Stack:
        stack = Stack(directory, **settings)
        stack.worker.encoder.modalities = WHOLE
        return stack

    return start


def ends_of_steps(steps) -> set[int]:
    """Return where steps of requests with images ended."""
    with_images, ends = set(), set()
    for step in steps:
        cached = step.cached_requests
        columns = (cached.handles, cached.num_computed_tokens, cached.num_scheduled_tokens)
        ends |= {sum(rest) for handle, *rest in zip(*map(unpack_u32, columns), strict=True) if handle in with_images}
        with_images |= {new.handle for new in step.new_requests if new.mm_features}
        ends |= {new.num_computed_tokens + new.num_scheduled_tokens for new in step.new_requests if new.mm_features}
    assert len(with_images) == 2
    return ends


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 45}, {"long_prefill_token_threshold": 5}], ids=str)
async def test_no_step_ends_inside_an_image(start, settings):
    async with start(**settings) as stack:
        client = await stack.client()
        for handle in (9, 10):
            client.add(handle, [*PROMPT[:-1], handle], mm_features=FEATURES, max_tokens=30)
        client.add(11, list(range(300, 400)), max_tokens=30)
        for handle in (9, 10, 11):
            await client.until_finished(handle)

        assert client.tokens[9] == expected(9, 30)
        ends = ends_of_steps(stack.worker.seen)

    assert not ends & {place for each in FEATURES for place in range(each.offset + 1, each.offset + each.length)}


async def test_an_image_that_no_step_can_compute_is_refused(start):
    async with start(max_num_batched_tokens=39) as stack:
        client = await stack.client()

        client.add(9, PROMPT, mm_features=FEATURES)
        await client.read()

        error = client.rejected["r9"]
    assert isinstance(error, InvalidRequest)
    assert error.message == (
        "Media item 0 has 40 tokens, which one step must compute; its maximum is 39. Raise --max-num-batched-tokens."
    )
