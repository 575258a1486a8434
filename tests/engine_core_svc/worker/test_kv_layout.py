"""Layout: the number of tokens of a step, from settings and the model."""

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.services.errors import InvalidRequest


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
