"""The device state of a stage that samples elsewhere: a step waits for its requests' tokens, and for no others."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.ranks.stages import ArrivingState


class Transfer:
    """An arrival that fills its tensor when somebody waits for it."""

    def __init__(self, *token_ids: int) -> None:
        self.tensor, self._token_ids = torch.zeros(len(token_ids), dtype=torch.int32), token_ids
        self.is_awaited = False

    def wait(self) -> torch.Tensor:
        self.is_awaited = True
        self.tensor.copy_(torch.tensor(self._token_ids))
        return self.tensor


@pytest.fixture
def batch() -> InputBatch:
    batch = InputBatch(max_num_seqs=4, max_model_len=16, block_size=4, num_groups=1)
    for slot in range(4):
        batch.num_tokens[slot] = 3
    return batch


@pytest.fixture
def state(batch) -> ArrivingState:
    state = ArrivingState(HostAccelerator(), batch)
    state.catch_up(np.arange(4))
    return state


def sample(state: ArrivingState, transfer: Transfer, *slots: int) -> None:
    state.expect(transfer)
    state.append(np.array(slots), transfer.tensor)


def test_a_step_of_other_requests_waits_for_nothing(state):
    sample(state, first := Transfer(41, 42), 0, 1)
    state.catch_up(np.array([2, 3]))
    assert not first.is_awaited

    state.catch_up(np.array([1]))

    assert first.is_awaited
    assert state.token_ids[:2, 3].tolist() == [41, 42]


def test_a_step_waits_for_the_last_tokens_of_its_requests_and_for_earlier_ones(state):
    transfers = [Transfer(41), Transfer(42), Transfer(43)]
    for slot, transfer in zip((0, 1, 2), transfers, strict=True):
        sample(state, transfer, slot)

    state.catch_up(np.array([1, 3]))

    assert [each.is_awaited for each in transfers] == [True, True, False]


def test_tokens_are_counted_before_they_arrive(state, batch):
    for token in (41, 42):
        sample(state, Transfer(token), 0)

    assert batch.num_tokens[0] == 5
    state.catch_up(np.array([0]))
    assert state.token_ids[0, 3:5].tolist() == [41, 42]


def test_tokens_of_a_request_that_left_are_overwritten_by_its_successors(state, batch):
    sample(state, Transfer(41), 0)
    state.add(0, None)  # type: ignore[arg-type] # only counts are reset
    batch.num_tokens[0] = 5
    batch.token_ids[0, :5] = [1, 2, 3, 4, 5]

    state.catch_up(np.array([0]))

    assert state.token_ids[0, :5].tolist() == [1, 2, 3, 4, 5]


def test_tokens_at_drafts_are_awaited_at_once(state):
    state.expect(transfer := Transfer(41, 42))

    state.write(np.array([0, 0]), np.array([0, 1]), transfer.tensor)

    assert state.token_ids[0, 3:5].tolist() == [41, 42]
