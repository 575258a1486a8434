"""The short version of `make chaos`: nearly every kind of fault occurs once under mixed load, and nothing is lost."""

import asyncio

from tests.chaos.catalogue import Sizes
from tests.chaos.kinds import BY_NAME
from tests.chaos.machine import why_not
from tests.chaos.run import run
from tests.chaos.schedule import Fault
from tests.chaos.settings import sim_plan

# Far enough apart that each strikes a stack that works again, on two busy cores as well. They last shorter than in a long run,
# so kinds that differ in their length alone are left out.
FAULTS = [
    Fault(0.5, "cut", "frontend>engine-core"),
    Fault(1.5, "kill", "worker"),
    Fault(4.5, "clock", "engine-core", 6.0),
    Fault(5.0, "stall", "engine-core>worker", 1.5),
    Fault(7.0, "freeze", "engine-core", 1.5),
    Fault(9.5, "burst", "engine-core", 1.0),
    Fault(13.0, "freeze-supervisor", "stack", 3.0),
    Fault(13.5, "kill", "tokenizer"),
    Fault(14.5, "garble", "frontend>tokenizer-2"),
    Fault(18.0, "disk-full", "engine-core", 2.0),
    Fault(18.5, "loss", "engine-core>worker", 2.0),
    Fault(19.0, "clock", "frontend", 4.0),
    Fault(20.5, "reorder", "frontend>engine-core", 2.0),
    Fault(21.0, "descriptors", "tokenizer-2", 2.0),
    Fault(22.5, "stall-back", "frontend>tokenizer", 1.5),
    Fault(24.0, "partition", "frontend>engine-core", 1.5),
    Fault(26.0, "partition-there", "engine-core>worker", 1.5),
    Fault(28.0, "slow", "frontend>tokenizer", 1.5),
    Fault(28.5, "memory", "worker", 2.0),
    Fault(29.5, "disk-error", "frontend", 1.5),
    Fault(32.0, "freeze-stack", "stack", 2.5),
    Fault(37.5, "restart", "tokenizer-2"),
    Fault(39.5, "freeze-two", "engine-core+tokenizer", 1.0),
    Fault(41.5, "block-stderr", "stack", 0.5),
    Fault(46.0, "kill", "frontend"),
]


def test_nothing_is_lost_duplicated_or_different_and_nothing_leaks(smollm2, tmp_path):
    """`smollm2` is there: the model's metadata and tokenizer are needed even where its weights are not."""
    faults = [fault for fault in FAULTS if why_not(BY_NAME[fault.kind].needs) is None]
    plan = sim_plan(
        1,
        49.0,
        sizes=Sizes(min_tokens=4, max_tokens=60, long_prompt_tokens=3000),
        num_requests=27,
        at_once=10,
        warm_up_rounds=1,
        burst=40,
        after_last_fault_s=3.0,
        # One round is too short for memory to have reached its level.
        memory_growth=1.3,
    )

    result = asyncio.run(run(plan, lambda stack: faults, tmp_path / "log"))

    assert result.problems == []
    assert sorted(struck.fault.at_s for struck in result.struck) == [fault.at_s for fault in faults]
    assert set(result.tally.verdicts) == {"equal"}
    assert result.num_accepted_drafts > 0, "no prediction came true"
    assert result.tally.num_retries >= 1, "the frontend was killed under load"
