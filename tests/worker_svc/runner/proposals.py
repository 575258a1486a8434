"""A driver's steps with a draft model that equals the target, so that every proposal must be right."""

from collections.abc import Mapping, Sequence

from tests.worker_svc.conftest import Driver
from tetrad.worker_svc.core.result import ModelRunnerOutput


def proposals_of(result: ModelRunnerOutput) -> dict[int, list[int]]:
    """Return handle -> drafts."""
    found, begin = {}, 0
    for handle, count in zip(result.proposals.handles.tolist(), result.proposals.num_tokens.tolist(), strict=True):
        found[handle] = result.proposals.token_ids[begin : begin + count].tolist()
        begin += count
    return found


def check_proposals(driver: Driver, expected: Mapping[int, Sequence[int]], num_tokens: int, num_drafts: int) -> int:
    """Run until all requests have `num_tokens` outputs, and compare each proposal and output; return the number of drafts.

    All drafts but the first of a step are changed, so that the draft model's keys and values behind it are dropped.
    """
    num_right = 0
    prompts = {handle: driver.remaining(handle) for handle in driver.requests}
    proposals = proposals_of(driver.step(prompts, num_spec_tokens=num_drafts))
    while any(len(each.output) < num_tokens for each in driver.requests.values()):
        for handle, drafts in proposals.items():
            begin = len(driver.requests[handle].output)
            assert drafts == expected[handle][begin : begin + len(drafts)]
            num_right += len(drafts)
        changed = {handle: [*proposals.get(handle, [])[:1], *(1 for _ in proposals.get(handle, [])[1:])] for handle in prompts}
        proposals = proposals_of(driver.verify(changed, num_spec_tokens=num_drafts))
    outputs = {handle: each.output for handle, each in driver.requests.items()}
    assert outputs == {handle: expected[handle][: len(output)] for handle, output in outputs.items()}
    return num_right
