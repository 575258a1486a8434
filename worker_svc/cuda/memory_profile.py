"""Memory profile: measures the memory of the largest step and of the largest graphs, in addition to weights and KV cache.

The step has the largest number of tokens, and requests with the most expensive parameters: penalties, which take a line of the
vocabulary for each request, truncated sampling, log-probabilities, and adapters if the model supports them. Before it, blocks
are swapped out. What layers with states keep for drafts is added. A model that pools also runs a step of pooling requests, with
an answer for every token if it has such a task. Graphs keep their memory beside that of steps, and share it among themselves,
so the largest of them is added. A stage of a pipeline keeps what it has sent until it has arrived.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec
from tetrad.worker_svc.core.request_table import MOST_DRAFTS_WITH_STATES
from tetrad.worker_svc.core.result import Runner, finished
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.loras import DeviceLoras
from tetrad.worker_svc.cuda.pooling_rows import DevicePoolingRows
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.runner_parts import WHOLE, RunnerParts
from tetrad.worker_svc.kv_cache.swap_pool import blocks_at_once
from tetrad.worker_svc.runner.warm_up import dummy_plan

_MOST_SAMPLING_ROWS = 256
"""Assumed number of rows of logits in a step; the number of requests is not known yet."""
_BLOCK_SIZE = 16


class ProfiledRunner(Runner, Protocol):
    """A Runner whose graphs can be measured."""

    def rehearse_graphs(self) -> None:
        """Run what the graphs record."""


Wrap = Callable[[CudaModelRunner], ProfiledRunner]
"""Function (a model's runner) -> the runner whose step is measured: the same one, or one that also drafts."""
_EVERYTHING = SamplingSpec(top_k=2, top_p=0.9, min_p=0.01, repetition_penalty=1.1, num_logprobs=20)


def worst_case_bytes(
    model: DeviceModel,
    accelerator: Accelerator,
    max_num_batched_tokens: int,
    loras: DeviceLoras | None = None,
    pooling: Callable[[InputBatch], DevicePoolingRows] | None = None,
    asked: Sequence[PoolingSpec | None] = (None,),
    wrap: Wrap | None = None,
    *,
    use_graphs: bool,
    parts: RunnerParts = WHOLE,
) -> int:
    """Return the bytes of a step of `max_num_batched_tokens` tokens, divided among as many requests as may sample at once.

    The memory of the graphs is added.

    Args:
        model, accelerator, loras, pooling, use_graphs, parts: see CudaModelRunner.
        max_num_batched_tokens: number of tokens in the largest step.
        asked: the pooling parameters of the requests of each measured step, see `largest_asked`.
        wrap: see Wrap; None: the model runs alone.
    """
    num_requests = min(_MOST_SAMPLING_ROWS, max_num_batched_tokens)
    num_tokens = min(-(-max_num_batched_tokens // num_requests), model.config.max_position_embeddings)
    block_size = model.kv_cache_spec.block_size_for(_BLOCK_SIZE)
    layout = KvLayout(
        num_blocks=1,  # only the null block, whose content is never read
        block_size=block_size,
        max_model_len=num_tokens,
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests * num_tokens,
        num_host_blocks=1,
    )
    the_same = np.zeros(blocks_at_once(model.kv_cache_spec.block_size_bytes(block_size)), np.int64)
    plans = [dummy_plan(num_requests, num_tokens, layout, _EVERYTHING, spec) for spec in asked]

    def make_runner() -> ProfiledRunner:
        alone = CudaModelRunner(model, layout, accelerator, use_graphs=use_graphs, loras=loras, pooling=pooling, parts=parts)
        return wrap(alone) if wrap else alone

    def run() -> None:
        runner = make_runner()
        with nullcontext() if loras is None else loras.rehearsal():
            for plan in plans:
                finished(runner.execute(replace(plan, swap_out=(the_same, the_same))))
                runner.forget_all()

    of_step, of_graphs = accelerator.peak_bytes(run), accelerator.peak_bytes(make_runner().rehearse_graphs)
    num_drafts = min(max_num_batched_tokens, MOST_DRAFTS_WITH_STATES)
    of_hidden = max_num_batched_tokens * model.config.hidden_size * model.dtype.itemsize
    return of_step + of_graphs + num_drafts * model.bytes_per_draft + parts.bytes_in_flight(of_hidden)


def largest_asked(facts: PoolingFacts | None) -> list[PoolingSpec | None]:
    """Return the pooling parameters of the requests of a model's largest steps; None means generation."""
    if facts is None:
        return [None]
    task = next((task for task in facts.tasks if task in ("token_embed", "token_classify")), facts.tasks[0])
    return [None, PoolingSpec(task)] if facts.generates else [PoolingSpec(task)]
