"""CUDA model runner: runs one step on the device, from a plan to tokens that stay there.

Owned by the compute thread, which queues steps and never waits for them: the host knows all lengths; only the device knows the
sampled tokens, and the next step reads them there. A step's results are copied to the host after it, and another thread reads
them (`PendingStep.wait`) while the compute thread queues the next step.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.layout_check import check_positions
from tetrad.worker_svc.core.plan import Ints, SchedulerOutput
from tetrad.worker_svc.core.request_table import RequestTable, ScheduledRows, SlotPart
from tetrad.worker_svc.core.result import ModelRunnerOutput, finished
from tetrad.worker_svc.core.sampler_options import DEFAULT_SAMPLER, SamplerOptions
from tetrad.worker_svc.core.step_inputs import StepRows, order_rows
from tetrad.worker_svc.cuda.block_contents import DeviceBlockContents
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.loras import DeviceLoras
from tetrad.worker_svc.cuda.media.slot_media import DeviceStepMedia, NoDeviceMedia
from tetrad.worker_svc.cuda.pending import LaunchedStep, LaunchLog, PlainSamples
from tetrad.worker_svc.cuda.pooling_rows import DevicePoolingRows, LaunchedPooling, NoDevicePooling
from tetrad.worker_svc.cuda.runner_parts import WHOLE, PassParts, RunnerParts, SamplerParts
from tetrad.worker_svc.cuda.sampling.prompt_logprobs import LaunchedPrompts, launch_prompts
from tetrad.worker_svc.cuda.sampling_warm_up import sampling_plans
from tetrad.worker_svc.cuda.slot_loras import NoGraphLoras, SlotGraphLoras
from tetrad.worker_svc.cuda.step_passes import See
from tetrad.worker_svc.cuda.verification import VerifiedSamples, Verifier, places_of
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.runner.prompt_embeds import SlotEmbeds
from tetrad.worker_svc.runner.prompt_logprobs import AskedPrompts
from tetrad.worker_svc.runner.prompt_scores import AskedScores
from tetrad.worker_svc.runner.warm_up import dummy_plans
from tetrad.worker_svc.sampler.custom_classes import make_processors

LogitsOfTokens = Callable[[Ints], torch.Tensor]
"""Function (indices [N] of tokens in the step, ascending) -> logits [N, V] after these tokens; the caller may change them."""


class Outputs(NamedTuple):
    """The outputs of a step's forward pass."""

    logits_of: LogitsOfTokens
    prompts: LaunchedPrompts = LaunchedPrompts()
    pooling: LaunchedPooling = LaunchedPooling()


class CudaModelRunner:
    """Executes plans with a loaded model; see Runner.

    Args:
        model: the model on the device.
        layout: KV blocks and limits; FailedPrecondition if the model has fewer positions than max_model_len.
        accelerator: the device.
        use_graphs: whether steps are recorded at warm-up and replayed, if the model's steps can be.
        loras: the model's adapters; None: the model does not support adapters.
        pooling: creates the pooling part for an input batch; None: the model only generates.
        media: creates the part for images for an input batch; None: the model takes only text.
        sampling: settings of the sampler.
        parts: creates the parts that depend on whether the model is whole.

    Attributes:
        batch, state: the requests, on the host and on the device.
        uses_graphs: the argument `use_graphs`.
        sampler: chooses their tokens.
        shifts: positions of the requests' tokens less their places, see DeviceStepMedia.
    """

    def __init__(
        self,
        model: DeviceModel,
        layout: KvLayout,
        accelerator: Accelerator,
        *,
        use_graphs: bool = True,
        loras: DeviceLoras | None = None,
        pooling: Callable[[InputBatch], DevicePoolingRows] | None = None,
        media: Callable[[InputBatch], DeviceStepMedia] | None = None,
        sampling: SamplerOptions = DEFAULT_SAMPLER,
        parts: RunnerParts = WHOLE,
    ) -> None:
        config = model.config
        check_positions(layout, config.max_position_embeddings)
        self._model, self.layout, self.accelerator = model, layout, accelerator
        self.uses_graphs = use_graphs
        self._kv_cache = KvCache(
            model.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
            device=accelerator.device,
        )
        self.batch = InputBatch.of_layout(layout, self._kv_cache.num_groups)
        self.state = parts.state(accelerator, self.batch)
        made = make_processors(
            sampling.processors,
            accelerator.device,
            vocab_size=config.vocab_size,
            max_model_len=layout.max_model_len,
            max_num_seqs=layout.max_num_seqs,
        )
        mode = sampling.logprobs_mode
        self._has_logits = mode.has_logits
        self.sampler = parts.sampler(SamplerParts(accelerator, self.state, self.batch, config.vocab_size, made, mode))
        self._asked_prompts, self._asked_scores = AskedPrompts(), AskedScores()
        self._pooling: DevicePoolingRows = NoDevicePooling() if pooling is None else pooling(self.batch)
        self._loras = NoGraphLoras() if loras is None else SlotGraphLoras(loras, layout.max_num_seqs)
        self._embeds = SlotEmbeds(config.embedding_size)
        self._media: DeviceStepMedia = NoDeviceMedia(accelerator) if media is None else media(self.batch)
        self.shifts = self._media.shifts
        by_slot: tuple[SlotPart, ...] = (
            self._pooling,
            self._loras,
            self._embeds,
            self._media,
            self.sampler,
            self._asked_scores,
        )
        self._requests = RequestTable(
            self.batch,
            config.vocab_size,
            (self.state, *by_slot, self._asked_prompts),
            [part.check for part in by_slot],
            has_states=bool(model.kv_cache_spec.state_size),
        )
        self._verifier = Verifier(self.batch, self.state, self.sampler)
        self._log = LaunchLog()
        self._passes = parts.passes(
            PassParts(model, self._kv_cache, self.state, self.batch, accelerator, self._loras, layout, self.shifts),
            use_graphs=use_graphs,
        )

    def watch(self, see: See) -> None:
        """Call `see` in each forward pass, with the hidden states [T, hidden] of its tokens; called before `warm_up`.

        Graphs record what `see` queues: it must write to fixed places.
        """
        self._passes.see = see

    @property
    def block_contents(self) -> DeviceBlockContents | None:
        """See SharesBlocks."""
        layers = self._kv_cache.layers_to_move
        return DeviceBlockContents(layers, self.accelerator) if layers else None

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return len(self.batch)

    def take_failed(self) -> tuple[int, ...]:
        """Return the handles of requests that have failed on the device and take no part in later steps."""
        return self._log.take_failed()

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput, failed: Iterable[int] | None = None) -> ModelRunnerOutput | LaunchedStep:
        """Queue one step on the device, without the requests of `failed`; None: those of `take_failed`."""
        started = time.perf_counter()
        self._verifier.settle()
        for handle in self.take_failed() if failed is None else failed:
            self._requests.set_aside(handle)
        self._kv_cache.move(plan)
        scheduled = self._requests.apply(plan)
        if not len(scheduled.slots):
            return ModelRunnerOutput(plan.step_id, _NONE, _NONE, failures=scheduled.failures)
        rows = self._ordered(scheduled)
        self.state.catch_up(rows.slots)
        has_drafts = bool(self.batch.num_drafts[rows.slots].any())
        if has_drafts:
            self.state.put_drafts(rows.slots)
        input_seconds = time.perf_counter() - started
        logits_of, prompts, pooling = self._forward(rows)
        samples = self._verify(rows, logits_of, plan) if has_drafts else self._sample(rows, logits_of, plan)
        download = self.accelerator.download([*samples.tensors, *prompts.tensors, *pooling.tensors])
        if isinstance(samples, VerifiedSamples):
            self._verifier.note_launched(samples, download)
        return LaunchedStep(
            step_id=plan.step_id,
            launch=self._log.note_launch(),
            rows=rows,
            samples=samples,
            has_drafts=has_drafts,
            prompts=prompts,
            pooling=pooling,
            download=download,
            failures=scheduled.failures,
            log=self._log,
            started=started,
            input_seconds=input_seconds,
        )

    def forget_all(self) -> None:
        """Remove every request; KV blocks keep their content until they are written again."""
        self._verifier.forget()
        self._requests.forget_all()
        # Steps in flight keep the old log: a failure that is read from them later may have the handle of a new request.
        self._log = LaunchLog()

    def settle(self) -> None:
        """Wait until the number of each request's tokens is known: the last step may have verified drafts."""
        self._verifier.settle()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps, which compiles kernels, and record the graphs."""
        pooled = self._pooling.rehearsed
        plans, rehearsal = dummy_plans(self.layout, self.layout.max_num_seqs, pooled), self._loras.rehearsal()
        adapted = [] if rehearsal is None else plans
        plans = plans if pooled else [*plans, *sampling_plans(self.layout)]
        imagined = self._media.rehearsal()
        pictured = [] if imagined is None else plans[:1]
        num_plans = len(adapted) + len(pictured) + len(plans)
        num_parts = num_plans + self._passes.num_graphs
        try:
            with rehearsal or nullcontext():
                self._run_plans(adapted, lambda done: report(done, num_parts))
            with imagined or nullcontext():
                self._run_plans(pictured, lambda done: report(len(adapted) + done, num_parts))
            self._run_plans(plans, lambda done: report(num_plans - len(plans) + done, num_parts))
        except torch.OutOfMemoryError as error:
            raise self._does_not_fit("The steps of the warm-up", "max_num_seqs") from error
        done = count(num_plans + 1)
        self.record(lambda: self._passes.record(lambda: report(next(done), num_parts)), "The graphs")

    @torch.inference_mode()
    def record(self, record: Callable[[], None], what: str) -> None:
        """Call `record`, which records graphs; raise FailedPrecondition, with the numbers, if they do not fit the device."""
        try:
            record()
        except torch.OutOfMemoryError as error:
            raise self._does_not_fit(what, "max_num_seqs, or set enforce_eager") from error

    @torch.inference_mode()
    def rehearse_graphs(self) -> None:
        """Run what the graphs record, to measure their memory."""
        self._passes.rehearse()

    def _run_plans(self, plans: Sequence[SchedulerOutput], report: Callable[[int], None]) -> None:
        for completed, plan in enumerate(plans, 1):
            finished(self.execute(plan))
            self.forget_all()
            report(completed)

    def _does_not_fit(self, what: str, others: str) -> FailedPrecondition:
        """Return the error of a warm-up that ran out of memory; `others`: the options to lower beside the utilization."""
        free, total = self.accelerator.memory()
        return FailedPrecondition(
            f"{what} do not fit: {free} of the device's {total} bytes were left; lower gpu_memory_utilization or {others}."
        )

    def _ordered(self, scheduled: ScheduledRows) -> StepRows:
        """Return a step's rows in order; only requests that generate have sampling rows."""
        rows = order_rows(self.batch, scheduled.slots, scheduled.num_computed, scheduled.num_scheduled)
        generating = self._pooling.generating(rows.slots[rows.sampling_rows])
        if len(generating) == len(rows.sampling_rows):
            return rows
        return replace(rows, sampling_rows=rows.sampling_rows[generating])

    def _sample(self, rows: StepRows, logits_of: LogitsOfTokens, plan: SchedulerOutput) -> PlainSamples:
        """Launch the sampling of one token for each row whose last known token is computed, and append the tokens."""
        slots = rows.slots[rows.sampling_rows]
        last = (rows.first_token + rows.num_scheduled - 1)[rows.sampling_rows]
        sampled = self.sampler.sample(logits_of(last), slots, plan.grammar)
        self.state.append(slots, sampled.token_ids)
        return PlainSamples(self.batch.handles[slots].astype(np.uint32), sampled)

    def _verify(self, rows: StepRows, logits_of: LogitsOfTokens, plan: SchedulerOutput) -> VerifiedSamples:
        """Launch the sampling at the places of drafts and after the last drafts; states change as the accepted drafts do."""
        samples = self._verifier.sample(places_of(rows, self.batch), logits_of, plan.grammar)
        drafted = [] if self._model.host_steps is None else self._model.host_steps.drafted
        if drafted:
            upload = self.accelerator.upload
            are_accepted = samples.are_accepted(drafted[0].slots, upload)
            for states in drafted:
                states.settle_on_device(upload(states.targets), are_accepted)
        return samples

    def _forward(self, rows: StepRows) -> Outputs:
        """Run the model; launch the requested log-probabilities of prompts, and the answers of pooling requests."""
        prompts = self._asked_prompts.chunks(rows, self.batch)
        scored = self._asked_scores.chunks(rows, self.batch)
        needs_hidden = bool(prompts) or bool(scored) or self._pooling.pools(rows.slots)
        given = self._media.given(rows, self._embeds.gather(rows))
        hidden, logits = self._passes.run(rows, given, needs_hidden=needs_hidden)
        if hidden is None:
            assert logits is not None
            return Outputs(lambda tokens: self._select(logits, tokens))
        launched = launch_prompts(
            prompts, hidden, self._prompt_logits, self.accelerator, scored=scored, has_logits=self._has_logits
        )
        pooling = self._pooling.launch(rows, hidden)
        owners = np.repeat(rows.slots, rows.num_scheduled)

        def logits_of(tokens: Ints) -> torch.Tensor:
            self._loras.select_rows(owners[tokens])
            return self._model.logits(self._select(hidden, tokens))

        return Outputs(logits_of, launched, pooling)

    def _prompt_logits(self, hidden: torch.Tensor, slot: int) -> torch.Tensor:
        """Return the logits [N, V] of hidden states [N, hidden] of one slot's prompt."""
        self._loras.select_rows(np.full(len(hidden), slot))
        return self._model.logits(hidden)

    def _select(self, values: torch.Tensor, rows: Ints) -> torch.Tensor:
        """Return the rows of `values` with these ascending indices; if all are selected, return `values` itself."""
        return values if len(rows) == len(values) else values[self.accelerator.upload(rows)]


_NONE = np.empty(0, np.uint32)
