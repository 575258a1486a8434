"""Quantized checkpoints on several ranks of the cuda device, interpreted, with gloo: the tokens and the bytes of one rank."""

import pytest

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.cuda.test_ranks import LAYOUT, SEEDED, loaded
from tests.worker_svc.packed_weights.whole_models import FORMATS, write_model
from tetrad.worker_svc.core.plan import SamplingSpec

pytestmark = host_only


def answers(driver: Driver) -> dict[int, list[int]]:
    """Generate for two prompts; few rows, so that fp8's activations stay floats."""
    driver.add(0, range(5, 14), SamplingSpec(temperature=0.0))
    driver.add(1, range(30, 34), SEEDED)
    return driver.generate(2)


@pytest.mark.parametrize("form", FORMATS)
def test_weights_stay_packed_and_tokens_are_those_of_one_rank(form, load_cuda, tmp_path):
    new, add = FORMATS[form]
    quantized, _ = write_model(tmp_path, new(), add)
    model = load_cuda(quantized, enforce_eager=True)
    expected = answers(Driver(model.make_runner(LAYOUT), LAYOUT))

    with loaded(tmp_path, quantized) as group:
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        found = answers(Driver(group, LAYOUT))

    assert found == expected
    # Columns whose groups are not in order are filled up to blocks; here, each rank has half a block of each group.
    assert max(sizes) < (0.65 if "other order" in form else 0.52) * model.info.weights_size_bytes
