"""Gemma 3 on the device, interpreted: image tokens attend to their whole image, within a window, as transformers'."""

import pytest

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import record_graphs
from tests.worker_svc.cuda.image_models import give_images
from tests.worker_svc.cuda.launches import Launches
from tests.worker_svc.families.test_whole_images import CHUNKS, NUM_TOKENS, PROMPTS, TEXT, add, check
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tetrad.worker_svc.core.device import KvLayout

LAYOUT = KvLayout(num_blocks=60, block_size=16, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=128)
USED = (0, 1, 2, TEXT)
"""Prompts of which one has an image that is larger than the window, and one has two."""


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gemma3")
    return directory, save_wrapper(directory, "gemma3")


@pytest.fixture(scope="module")
def model(gemma, load_cuda):
    model = load_cuda(gemma[0])
    give_images(model, [PROMPTS[handle] for handle in USED], is_whole=True)
    return model


@pytest.mark.parametrize("with_graphs", [False, True])
def test_together_in_chunks_that_end_between_images(with_graphs, model, gemma):
    runner = model.make_runner(LAYOUT)
    if with_graphs:
        record_graphs(runner)
    driver, graphs = Driver(runner, LAYOUT, keeps_passed=True), []
    for handle in USED:
        add(driver, handle, PROMPTS[handle])
    for handle in (0, 1):
        for count in CHUNKS[handle]:
            with Launches() as launches:
                driver.step({handle: count, TEXT: 1})
            graphs.append(launches.graphs)

    driver.generate(NUM_TOKENS)

    assert graphs == ([1, 1, 0, 1, 1, 0, 1] if with_graphs else [0] * len(graphs))
    check(driver, gemma[1])


def test_a_warm_up_runs_a_step_like_those_with_images(model):
    """The kernel's variant for images is compiled before the first one comes."""
    progress, seen = [], []
    runner = model.make_runner(KvLayout(20, 16, max_model_len=16, max_num_seqs=1, max_num_batched_tokens=16))
    run = runner._passes.run

    def noted(rows, given, **options):
        seen.append(given.ends is not None)
        return run(rows, given, **options)

    runner._passes.run = noted
    runner.warm_up(lambda done, total: progress.append((done, total)))

    assert seen[0]
    assert not any(seen[1:])
    assert progress[-1][0] == progress[-1][1]
    assert [done for done, _ in progress] == list(range(1, len(progress) + 1))
