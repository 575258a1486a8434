"""Random combinations of everything that requests may have, in an engine that is disturbed: each answer is as it is alone.

`make test` takes one walk with each of a few models, `make exhaustive-test` some with every model, the same ones each time.
`make combinations` takes as many as WALKS says, from SEED on, in turn with every model. A walk that fails prints its seed,
its settings and its requests; the times of what happens differ in each run.
"""

import os

import pytest

from tests.combinations.checkpoints import MAKERS, Checkpoints
from tests.combinations.walk import Walk
from tests.e2e.test_speculation import unjudged
from tests.grids import grid

WALKS = int(os.environ.get("TEST_COMBINATIONS", "0"))
FIRST = int(os.environ.get("TEST_SEED", "0"))
SHORT = {("llama", 0), ("windows", 1), ("lfm2", 2), ("qwen2_audio", 0)}
MODELS = list(MAKERS)
CASES = (
    [(MODELS[seed % len(MODELS)], seed) for seed in range(FIRST, FIRST + WALKS)]
    if WALKS
    else grid([(name, seed) for name in MODELS for seed in range(4)], lambda name, seed: (name, seed) in SHORT)
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("combinations"))


@pytest.fixture(autouse=True)
def one_image_process(monkeypatch) -> None:
    """A second one takes seconds to start."""
    monkeypatch.setenv("TETRAD_TOKENIZER_IMAGE_PROCESSES", "1")


@pytest.mark.usefixtures(unjudged.__name__)
@pytest.mark.parametrize(("name", "seed"), CASES)
async def test_answers_in_a_crowd_are_those_of_each_request_alone(checkpoints, name, seed):
    walk = Walk(checkpoints[name], seed)

    differences = await walk.run()

    assert not differences, "\n".join([f"{name}, seed {seed}: {walk.options}, {walk.log}", *differences])
