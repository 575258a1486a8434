"""Warm-up: dummy plans of typical sizes that touch no block but the null block."""

import numpy as np

from tetrad.worker_svc.devices.interface import KvLayout
from tetrad.worker_svc.plan import CachedRequests, NewRequest, SamplingSpec, StepPlan

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CHUNK_TOKENS = 256


def dummy_plans(layout: KvLayout) -> list[StepPlan]:
    """Return steps of several batch sizes and one prefill chunk; run each, then forget all requests."""
    chunk = min(_CHUNK_TOKENS, layout.max_model_len, layout.max_num_batched_tokens)
    sizes = [size for size in _BATCH_SIZES if size <= min(layout.max_num_seqs, layout.max_num_batched_tokens)]
    return [_plan(1, chunk, layout), *(_plan(size, 1, layout) for size in sizes)]


def _plan(num_requests: int, num_tokens: int, layout: KvLayout) -> StepPlan:
    none = np.empty(0, np.int64)
    requests = [
        NewRequest(
            handle=handle,
            request_id=f"warm-up-{handle}",
            token_ids=np.zeros(num_tokens, np.int64),
            num_prompt_tokens=num_tokens,
            num_computed_tokens=0,
            num_scheduled_tokens=num_tokens,
            block_ids=np.zeros(-(-num_tokens // layout.block_size), np.int64),
            sampling=SamplingSpec(temperature=0.0),
        )
        for handle in range(num_requests)
    ]
    return StepPlan(step_id=0, new_requests=requests, cached=CachedRequests(none, none, none, none, none))
