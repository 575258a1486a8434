"""The short version of `make chaos`: every service is killed once under mixed load, and nothing is lost."""

import asyncio

from tests.chaos.catalogue import Sizes
from tests.chaos.run import run
from tests.chaos.schedule import Fault
from tests.chaos.settings import sim_plan

# Far enough apart that each strikes a stack that works again, on two busy cores as well.
FAULTS = [
    Fault(0.5, "cut", "frontend>engine-core"),
    Fault(1.5, "kill", "worker"),
    Fault(5.0, "stall", "engine-core>worker", 1.5),
    Fault(7.5, "freeze", "engine-core", 1.5),
    Fault(10.5, "kill", "engine-core"),
    Fault(13.5, "kill", "tokenizer"),
    Fault(14.5, "garble", "frontend>tokenizer-2"),
    Fault(16.0, "kill", "frontend"),
]


def test_nothing_is_lost_duplicated_or_different_and_nothing_leaks(smollm2, tmp_path):
    """`smollm2` is there: the model's metadata and tokenizer are needed even where its weights are not."""
    plan = sim_plan(
        1,
        19.0,
        sizes=Sizes(min_tokens=4, max_tokens=100, long_prompt_tokens=3000),
        num_requests=30,
        at_once=10,
        warm_up_rounds=1,
        # One round is too short for memory to have reached its level.
        memory_growth=1.3,
    )

    result = asyncio.run(run(plan, lambda stack: FAULTS, tmp_path / "log"))

    assert result.problems == []
    assert [struck.fault for struck in result.struck] == FAULTS
    assert set(result.tally.verdicts) == {"equal"}
    assert result.tally.num_retries >= 1, "the frontend was killed under load"
