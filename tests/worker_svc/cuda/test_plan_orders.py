"""The leader's orders on the cuda device: a plan arrives as it was sent."""

import msgspec
import numpy as np
import pytest

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.request_context import RequestContext
from tetrad.worker_svc.core.plan import (
    CachedRequests,
    DraftTokens,
    GrammarRows,
    NewRequest,
    PromptEmbeds,
    SamplingSpec,
    SchedulerOutput,
)
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.cuda.ranks.orders import PlanOrder, decode_order, encode_order

NONE = np.empty(0, np.int64)
PLAN = SchedulerOutput(
    step_id=7,
    new_requests=[
        NewRequest(
            handle=3,
            request_id="r",
            token_ids=np.arange(5),
            num_prompt_tokens=5,
            num_computed_tokens=0,
            num_scheduled_tokens=5,
            block_ids=np.array([[4, 5], [4, 5]]),
            sampling=SamplingSpec(
                temperature=0.5, seed=2**63, logit_bias={7: -1.5}, bad_words=((1, 2),), extra_args={"a": [1, 0.5, "b"]}
            ),
            context=RequestContext("id", "00-1-2-01"),
            pooling=PoolingSpec("embed"),
            prompt_embeds=PromptEmbeds(np.array([1]), np.ones((1, 4), np.float32)),
            refusal=InvalidRequest("Too long.", field="prompt", reason="TOO_LONG"),
        )
    ],
    cached=CachedRequests(np.array([1]), np.array([2]), np.array([9]), np.array([0]), np.empty((2, 0), np.int64)),
    removed_handles=[8],
    grammar=GrammarRows(np.array([1]), np.array([[0xFFFFFFFF, 1]], np.uint32)),
    drafts=DraftTokens.of({1: [4]}),
    num_spec_tokens=2,
    swap_out=(np.array([1]), np.array([2])),
)


def plain(value: object) -> object:
    """Return a value in a form that can be compared: arrays as lists with their type, objects as their fields."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, TetradError):
        return value.message
    fields = getattr(type(value), "__dataclass_fields__", None)
    return value if fields is None else {name: plain(getattr(value, name)) for name in fields}


def test_an_order_arrives_as_it_was_sent():
    order = PlanOrder(PLAN, failed=(5, 6), is_first=True)

    assert plain(decode_order(encode_order(order))) == plain(order)


def test_a_message_of_another_kind_is_refused():
    numbers = encode_order(PlanOrder(PLAN))
    numbers[0] -= 1

    with pytest.raises(msgspec.DecodeError):
        decode_order(numbers)
    with pytest.raises(msgspec.ValidationError):
        decode_order(encode_order(PlanOrder(PLAN.cached)))
