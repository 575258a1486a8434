"""The short version of `make chaos-media`: each service is killed under a load of images, and nothing is lost or different.

`make exhaustive-test` does the same with recordings and a model that transcribes.
"""

import asyncio

import pytest

from tests.chaos.catalogue import Sizes
from tests.chaos.run import run
from tests.chaos.schedule import Fault
from tests.chaos.settings import SPEECH_SEED, media_plan
from tests.grids import grid

SIZES = Sizes(min_tokens=4, max_tokens=24, long_prompt_tokens=300)
FAULTS = [
    Fault(0.5, "kill", "worker"),
    Fault(3.5, "kill", "engine-core"),
    Fault(6.0, "kill", "tokenizer"),
    Fault(7.0, "cut", "frontend>tokenizer-2"),
    Fault(9.0, "freeze", "worker", 1.5),
    Fault(11.5, "kill", "frontend"),
]


@pytest.mark.parametrize("seed", grid([0, SPEECH_SEED], lambda seed: not seed), ids=["images", "recordings"])
def test_media_are_neither_lost_nor_different(tmp_path, seed):
    small = {"sizes": SIZES, "num_requests": 26, "at_once": 4, "warm_up_rounds": 1, "after_last_fault_s": 3.0}
    plan = media_plan(seed, 14.0, **small, memory_growth=1.3)

    result = asyncio.run(run(plan, lambda stack: FAULTS, tmp_path / "log"))

    assert result.problems == []
    assert sorted(struck.fault.at_s for struck in result.struck) == [fault.at_s for fault in FAULTS]
    assert set(result.tally.verdicts) == {"equal"}
    assert result.tally.num_retries >= 1, "the frontend was killed under load"
