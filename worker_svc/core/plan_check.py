"""Plan check: checks that a plan stays within the layout, before the plan reaches a device.

Called by the worker for every plan. On a device, an index out of range would read or write another request's memory. The
request table compares a plan's requests with the known ones.
"""

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import Ints, SchedulerOutput


def check_plan(plan: SchedulerOutput, layout: KvLayout, vocab_size: int, num_groups: int) -> None:
    """Raise InvalidRequest, with value and limit, for unknown blocks or groups, too many tokens, or masks of a wrong size."""
    for block_ids in (*(new.block_ids for new in plan.new_requests), plan.cached.new_block_ids):
        if block_ids.size and len(block_ids) != num_groups:
            raise InvalidRequest(
                f"Step {plan.step_id} has {len(block_ids)} block tables per request; the model has {num_groups} KV groups."
            )
        _check_blocks(block_ids, layout)
    for copies, has_host_sources, has_host_targets in (
        (plan.swap_out, False, True),
        (plan.swap_in, True, False),
    ):
        if copies is not None:
            if len(copies[0]) != len(copies[1]):
                raise InvalidRequest(f"Step {plan.step_id} copies {len(copies[0])} blocks to {len(copies[1])}.")
            _check_blocks(copies[0], layout, on_host=has_host_sources)
            _check_blocks(copies[1], layout, on_host=has_host_targets)
    num_tokens = int(plan.cached.num_scheduled_tokens.sum()) + sum(new.num_scheduled_tokens for new in plan.new_requests)
    if num_tokens > layout.max_num_batched_tokens:
        raise InvalidRequest(
            f"Step {plan.step_id} has {num_tokens} tokens; the worker was set up for {layout.max_num_batched_tokens}."
        )
    num_words = (vocab_size + 31) // 32
    if plan.grammar is not None and plan.grammar.bitmask.shape[1] != num_words:
        raise InvalidRequest(f"Masks have {plan.grammar.bitmask.shape[1]} words; this vocabulary needs {num_words}.")


def check_drafter(plan: SchedulerOutput, request: LoadRequest | None) -> None:
    """Raise InvalidRequest for a plan that wants drafts of a model, if the model was loaded without one (`request`)."""
    if plan.num_spec_tokens and (request is None or not request.draft_method):
        raise InvalidRequest(f"num_spec_tokens {plan.num_spec_tokens}: this worker was given no draft model.")


def _check_blocks(block_ids: Ints, layout: KvLayout, *, on_host: bool = False) -> None:
    if not block_ids.size:
        return
    largest, num_blocks = int(np.max(block_ids)), layout.num_host_blocks if on_host else layout.num_blocks
    if largest >= num_blocks:
        kind, owner = ("Host block", "second tier") if on_host else ("Block", "KV cache")
        raise InvalidRequest(f"{kind} {largest} does not exist; the {owner} has {num_blocks} blocks.")
