"""The device's mirror of the input batch: the host's data, and the device's own samples."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.sampling.state import DeviceState


def request(handle: int, tokens: list[int], blocks: list[int]) -> NewRequest:
    return NewRequest(
        handle=handle,
        request_id=str(handle),
        token_ids=np.array(tokens, np.int64),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        num_scheduled_tokens=len(tokens),
        block_ids=np.array([blocks], np.int64),
        sampling=SamplingSpec(),
    )


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(max_num_seqs=3, max_model_len=12, block_size=4)


@pytest.fixture
def state(batch) -> DeviceState:
    return DeviceState(HostAccelerator(), batch)


def add(state: DeviceState, batch: InputBatch, new: NewRequest) -> int:
    slot = batch.add(new)
    state.add(slot, new)
    return slot


def test_new_requests_are_copied_whole(state, batch):
    slots = np.array([add(state, batch, request(5, [7, 8, 9], [2])), add(state, batch, request(6, [1] * 6, [4, 3]))])

    state.catch_up(slots)

    assert state.token_ids[slots[0], :3].tolist() == [7, 8, 9]
    assert state.token_ids[slots[1], :6].tolist() == [1] * 6
    assert state.block_tables[0, slots[1], :2].tolist() == [4, 3]


def test_only_what_is_new_is_copied(state, batch):
    slot = add(state, batch, request(5, [7, 8, 9, 1], [2]))
    state.catch_up(np.array([slot]))
    state.block_tables[0, slot, 0] = 99  # would be written over if it were copied again

    batch.append_blocks(np.array([slot]), np.array([2]), np.array([[8, 6]]))
    state.catch_up(np.array([slot]))

    assert state.block_tables[0, slot, :3].tolist() == [99, 8, 6]


def test_a_sampled_token_stays_on_the_device(state, batch):
    slots = np.array([add(state, batch, request(5, [7, 8], [2])), add(state, batch, request(6, [3], [4]))])
    state.catch_up(slots)

    state.append(slots, torch.tensor([41, 42], dtype=torch.int32))
    state.catch_up(slots)

    assert state.token_ids[slots[0], :3].tolist() == [7, 8, 41]
    assert state.token_ids[slots[1], :2].tolist() == [3, 42]
    assert batch.num_tokens[slots].tolist() == [3, 2]


def test_the_longest_request_keeps_its_last_token(state, batch):
    slot = add(state, batch, request(5, [1] * 12, [2, 3, 4]))
    state.catch_up(np.array([slot]))

    for token in (50, 51):
        state.append(np.array([slot]), torch.tensor([token], dtype=torch.int32))

    assert state.token_ids[slot, 11:].tolist() == [1, 51]
    assert batch.num_tokens[slot] == 13


def test_a_slot_that_is_used_again_is_copied_anew(state, batch):
    slot = add(state, batch, request(5, [7, 8, 9], [2]))
    state.catch_up(np.array([slot]))
    batch.remove(5)
    state.remove(slot)

    again = add(state, batch, request(6, [4, 4], [9]))
    state.catch_up(np.array([again]))

    assert again == slot
    assert state.token_ids[slot, :2].tolist() == [4, 4]
    assert state.block_tables[0, slot, 0] == 9


def test_a_step_without_news_copies_nothing(state, batch):
    slot = add(state, batch, request(5, [7, 8, 9], [2]))
    state.catch_up(np.array([slot]))
    state.token_ids.zero_()

    state.catch_up(np.array([slot]))

    assert state.token_ids.sum() == 0
