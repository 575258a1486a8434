"""CUDA model runner: runs one step on the device, from a plan to tokens that stay there.

Owned by the compute thread. A step is queued, never waited for: the host knows all lengths, only the device knows the tokens
it sampled, and the next step reads them there. A step's results are copied out after it and read on another thread
(`PendingStep.wait`), while the compute thread queues the next one.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, StepPlan, StepResult, finished
from tetrad.worker_svc.core.request_table import RequestTable
from tetrad.worker_svc.core.step_inputs import StepRows, order_rows
from tetrad.worker_svc.cuda.attention import AttentionParts, DeviceStep, PagedAttention
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.graphs import DecodeGraphs
from tetrad.worker_svc.cuda.host_metadata import NOTHING, HostMetadata
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.pending import LaunchedStep, LaunchLog
from tetrad.worker_svc.cuda.sampling.prompt_logprobs import LaunchedPrompts, launch_prompts
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampler
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.cuda.sampling_warm_up import sampling_plans
from tetrad.worker_svc.kernels.gather_inputs import NUM_KEYS, SLOT, Gathered, gather_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.host import HostStep
from tetrad.worker_svc.runner.plain_requests import PLAIN_REQUESTS
from tetrad.worker_svc.runner.prompt_logprobs import AskedPrompts
from tetrad.worker_svc.runner.warm_up import dummy_plans


class CudaModelRunner:
    """Runs plans over a loaded model; see Runner.

    Args:
        model: on the device.
        layout: KV blocks and limits; FailedPrecondition if the model has fewer positions than max_model_len.
        accelerator: the device.
        use_graphs: whether steps of decodes are recorded at warm-up and replayed.
    """

    def __init__(self, model: DeviceModel, layout: KvLayout, accelerator: Accelerator, *, use_graphs: bool = True) -> None:
        config = model.config
        if layout.max_model_len > config.max_position_embeddings:
            raise FailedPrecondition(
                f"max_model_len {layout.max_model_len} exceeds the model's {config.max_position_embeddings} positions."
            )
        self._model, self.layout, self._accelerator = model, layout, accelerator
        self._use_graphs = use_graphs and model.host_steps is None
        self._kv_cache = KvCache(
            model.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
            device=accelerator.device,
        )
        self._batch = InputBatch(
            max_num_seqs=layout.max_num_seqs,
            max_model_len=layout.max_model_len,
            block_size=layout.block_size,
            num_groups=self._kv_cache.num_groups,
        )
        self._state = DeviceState(accelerator, self._batch)
        self._sampler = DeviceSampler(accelerator, self._state, self._batch, config.vocab_size)
        self._asked_prompts = AskedPrompts()
        listeners = (self._state, self._sampler, self._asked_prompts)
        self._requests = RequestTable(self._batch, config.vocab_size, listeners, PLAIN_REQUESTS)
        self._log = LaunchLog()
        self._attention = (
            PagedAttention(config, model.dtype, model.kv_cache_spec.dtype, accelerator, layout.max_model_len)
            if model.has_kernel_attention
            else None
        )
        self._host_metadata = HostMetadata(model.host_steps, self._batch, accelerator)
        self._graphs = DecodeGraphs(accelerator, vocab_size=config.vocab_size, most=layout.max_num_seqs)

    @property
    def num_requests(self) -> int:
        """Requests known."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult | LaunchedStep:
        """Queue one step."""
        started = time.perf_counter()
        if plan.drafts is not None:
            raise InvalidRequest("The CUDA device does not verify draft tokens.")
        self._log.set_aside(self._requests)
        self._kv_cache.move(plan)
        scheduled = self._requests.apply(plan)
        if not len(scheduled.slots):
            return StepResult(plan.step_id, _NONE, _NONE, failures=scheduled.failures)
        rows = order_rows(self._batch, scheduled.slots, scheduled.num_computed, scheduled.num_scheduled)
        self._state.catch_up(rows.slots)
        input_seconds = time.perf_counter() - started
        logits, prompts = self._forward(rows)
        slots = rows.slots[rows.sampling_rows]
        sampled = self._sampler.sample(logits, slots, plan.grammar)
        self._state.append(slots, sampled.token_ids)
        return LaunchedStep(
            step_id=plan.step_id,
            launch=self._log.note_launch(),
            handles=self._batch.handles[slots].astype(np.uint32),
            sampled=sampled,
            prompts=prompts,
            download=self._accelerator.download([*sampled.tensors, *prompts.tensors]),
            failures=scheduled.failures,
            log=self._log,
            started=started,
            input_seconds=input_seconds,
        )

    def forget_all(self) -> None:
        """Forget every request; blocks keep their content until they are written again."""
        self._requests.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps, which compiles kernels, and record the graphs."""
        plans = [*dummy_plans(self.layout, self.layout.max_num_seqs), *sampling_plans(self.layout)]
        num_parts = len(plans) + (len(self._graphs.sizes) if self._use_graphs else 0)
        for completed, plan in enumerate(plans, 1):
            finished(self.execute(plan))
            self.forget_all()
            report(completed, num_parts)
        if self._use_graphs:
            self._record_graphs(lambda done, _: report(len(plans) + done, num_parts))

    @torch.inference_mode()
    def _record_graphs(self, report: Callable[[int, int], None]) -> None:
        try:
            self._graphs.record(self._decode_logits, report)
        except torch.OutOfMemoryError as error:
            free, total = self._accelerator.memory()
            raise FailedPrecondition(
                f"Graphs for up to {self._graphs.sizes[-1]} requests do not fit: {free} of the device's {total} bytes were "
                "left; lower gpu_memory_utilization or max_num_seqs, or set enforce_eager."
            ) from error

    def _forward(self, rows: StepRows) -> tuple[torch.Tensor, LaunchedPrompts]:
        """Return the logits [N, V] of the rows that sample, and the requested log-probabilities of prompts."""
        table = table_of(rows)
        prompts = self._asked_prompts.chunks(rows, self._batch)
        if not prompts and self._graphs.fits(rows):
            logits = self._graphs.run(table)
            return self._select(logits, rows.sampling_rows, len(rows.slots)), LaunchedPrompts()
        hidden = self._hidden(rows, self._accelerator.upload(table))
        launched = launch_prompts(prompts, hidden, lambda its, _: self._model.logits(its), self._accelerator)
        last = (rows.first_token + rows.num_scheduled - 1)[rows.sampling_rows]
        return self._model.logits(self._select(hidden, last, rows.num_tokens)), launched

    def _hidden(self, rows: StepRows, table: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a step of any shape."""
        tables = self._state.block_tables.index_select(1, table[:, SLOT])
        parts = self._attention.parts(rows, tables[0]) if self._attention else None
        return self._run(table, tables, parts, rows.num_tokens, int(rows.num_scheduled.max()), self._host_metadata.of(rows))

    def _decode_logits(self, table: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, V] of rows [B, 5] of one token each, of which some may be padding."""
        tables = self._state.block_tables.index_select(1, table[:, SLOT].clamp(min=0))
        assert self._attention is not None, "a model whose steps are recorded has kernels"
        parts = AttentionParts(len(table), self._attention.decode_part(tables[0], table[:, NUM_KEYS].contiguous()), None)
        return self._model.logits(self._run(table, tables, parts, len(table), 1, NOTHING))

    def _run(
        self,
        table: torch.Tensor,
        tables: torch.Tensor,
        parts: AttentionParts | None,
        num_tokens: int,
        most_scheduled: int,
        host: HostStep,
    ) -> torch.Tensor:
        """Return the hidden states [T, hidden] of rows [R, 5], whose block tables are [G, R, P]."""
        gathered = [self._gather(table, its_tables, num_tokens, most_scheduled) for its_tables in self._state.block_tables]
        steps = [
            DeviceStep(
                kv_slots,
                parts.over(tables[group]) if parts else None,
                self._attention,
                host.pages.get(group),
                host.states.get(group),
            )
            for group, (_, _, kv_slots) in enumerate(gathered)
        ]
        ids, positions, _ = gathered[0]
        return self._model.forward(ids, positions, self._kv_cache.layers, steps)

    def _gather(self, table: torch.Tensor, block_tables: torch.Tensor, num_tokens: int, most_scheduled: int) -> Gathered:
        return gather_inputs(
            table,
            self._state.token_ids,
            block_tables,
            block_size=self.layout.block_size,
            num_tokens=num_tokens,
            most_scheduled=most_scheduled,
        )

    def _select(self, values: torch.Tensor, rows: Ints, num_rows: int) -> torch.Tensor:
        """Return some rows of values, which are values themselves if those are all."""
        return values if len(rows) == num_rows else values[self._accelerator.upload(rows)]


def table_of(rows: StepRows) -> npt.NDArray[np.int32]:
    """Return a step's rows [R, 5], as gather_inputs has them."""
    columns = rows.slots, rows.num_computed, rows.num_scheduled, rows.first_token, rows.num_computed + rows.num_scheduled
    return np.stack(columns, 1).astype(np.int32)


_NONE = np.empty(0, np.uint32)
