"""Warm-up: builds plans of typical sizes that use only the null block."""

import numpy as np

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingSpec

_LARGEST_BATCH = 64
_CHUNK_TOKENS = 256
_GREEDY = SamplingSpec(temperature=0.0)


def dummy_plans(
    layout: KvLayout, largest_batch: int = _LARGEST_BATCH, pooling: PoolingSpec | None = None
) -> list[SchedulerOutput]:
    """Return the plans of one prefill chunk and of steps with 1, 2, 4, ... requests.

    The caller runs each plan and then removes all requests.

    Args:
        layout: limits of a step.
        largest_batch: largest number of requests in a step.
        pooling: the pooling parameters of the requests; None: they generate.
    """
    chunk = min(_CHUNK_TOKENS, layout.max_model_len, layout.max_num_batched_tokens)
    most = min(layout.max_num_seqs, layout.max_num_batched_tokens, largest_batch)
    sizes = [1 << exponent for exponent in range(most.bit_length())]
    shapes = [(1, chunk), *((size, 1) for size in sizes)]
    return [dummy_plan(*shape, layout, pooling=pooling) for shape in shapes]


def dummy_plan(
    num_requests: int,
    num_tokens: int,
    layout: KvLayout,
    sampling: SamplingSpec = _GREEDY,
    pooling: PoolingSpec | None = None,
) -> SchedulerOutput:
    """Return the plan of a step with `num_requests` prompts of `num_tokens` tokens on the null block."""
    none = np.empty(0, np.int64)
    requests = [
        NewRequest(
            handle=handle,
            request_id=f"warm-up-{handle}",
            token_ids=np.zeros(num_tokens, np.int64),
            num_prompt_tokens=num_tokens,
            num_computed_tokens=0,
            num_scheduled_tokens=num_tokens,
            block_ids=np.zeros((1, -(-num_tokens // layout.block_size)), np.int64),  # for every KV group
            sampling=sampling,
            pooling=pooling,
        )
        for handle in range(num_requests)
    ]
    return SchedulerOutput(step_id=0, new_requests=requests, cached=CachedRequests(none, none, none, none, none[None]))
