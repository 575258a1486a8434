"""Layout: the number of tokens of a step, from settings and the model."""

import pytest
from pydantic import ValidationError

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.services.errors import FailedPrecondition, InvalidRequest


def layout(**settings):
    return plan_layout(
        EngineCoreSettings(**settings), block_size_bytes=1 << 20, available_bytes=1 << 40, max_position_embeddings=8192
    )


@pytest.mark.parametrize(
    ("settings", "num_tokens"),
    [
        ({}, 2048),
        ({"max_num_batched_tokens": 512}, 512),
        ({"enable_chunked_prefill": False}, 8192),
        ({"enable_chunked_prefill": False, "max_model_len": 1000}, 2048),
        ({"enable_chunked_prefill": False, "max_model_len": 1000, "max_num_batched_tokens": 1000}, 1000),
    ],
    ids=str,
)
def test_a_step_holds_a_whole_prompt_where_prompts_are_not_split(settings, num_tokens):
    assert layout(**settings).max_num_batched_tokens == num_tokens


def test_a_step_too_small_for_the_longest_prompt_is_refused_without_chunked_prefill():
    """Such a prompt would never run, and nothing behind it."""
    with pytest.raises(InvalidRequest, match=r"max_num_batched_tokens \(2048\) is smaller than max_model_len \(8192\)"):
        layout(enable_chunked_prefill=False, max_num_batched_tokens=2048)


def test_a_limit_that_splits_prompts_is_refused_without_chunked_prefill():
    with pytest.raises(
        InvalidRequest, match="long_prefill_token_threshold 7 splits prompts, and enable_chunked_prefill is off"
    ):
        layout(enable_chunked_prefill=False, long_prefill_token_threshold=7)


TOO_LITTLE = "0 KV blocks of 16 tokens hold one sequence of 0 tokens, but "


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {},
            "max_model_len is 64, which needs 5 MiB of the 0 MiB that are available. Lower --max-model-len, set it to auto",
        ),
        ({"max_model_len": "auto"}, "the shortest max_model_len is 2, which needs 2 MiB of the 0 MiB that are available. Give"),
    ],
    ids=["unset", "auto"],
)
def test_memory_that_holds_no_sequence_is_refused_with_the_numbers_and_the_way_out(settings, text):
    with pytest.raises(FailedPrecondition) as refused:
        plan_layout(EngineCoreSettings(**settings), block_size_bytes=1 << 20, available_bytes=1000, max_position_embeddings=64)

    assert refused.value.message.startswith(TOO_LITTLE + text)


def test_blocks_that_hold_no_sequence_are_refused_with_the_numbers():
    with pytest.raises(FailedPrecondition, match="one sequence of 1 tokens, but the shortest max_model_len is 2"):
        layout(max_model_len="auto", num_gpu_blocks_override=2, block_size=1)


@pytest.mark.parametrize("given", [-1, "-1"])
def test_minus_one_is_the_automatic_length_as_in_vllm(given):
    assert layout(max_model_len=given, num_gpu_blocks_override=3).max_model_len == 32


@pytest.mark.parametrize("given", [-4, 0, 1])
def test_a_length_without_room_for_a_prompt_and_its_answer_is_no_setting(given):
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        EngineCoreSettings(max_model_len=given)


@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(2, 16), (3, 32), (600, 8192)])
def test_an_automatic_length_is_what_the_blocks_hold(num_blocks, max_model_len):
    assert layout(max_model_len="auto", num_gpu_blocks_override=num_blocks).max_model_len == max_model_len


@pytest.mark.parametrize(
    ("available_mib", "max_num_seqs", "num_items", "num_blocks"),
    [
        (1000, 8, 8, 33),
        (64, 8, 3, 24),
        (4, 8, 1, 4),
        (64, 2, 2, 9),
    ],
)
def test_blocks_and_encoded_items_have_room_for_as_many_requests(available_mib, max_num_seqs, num_items, num_blocks):
    """A sequence of 64 tokens takes 4 blocks of 1 MiB, and its item 20 MiB; the room of the first item is set aside."""
    planned = plan_layout(
        EngineCoreSettings(max_num_seqs=max_num_seqs),
        block_size_bytes=1 << 20,
        available_bytes=available_mib << 20,
        max_position_embeddings=64 if available_mib > 4 else 32,
        encoded_item_bytes=20 << 20,
    )

    assert (planned.num_encoded_items, planned.num_blocks) == (num_items, num_blocks)


def test_a_model_without_encoded_items_has_room_for_none():
    assert layout().num_encoded_items == 0
