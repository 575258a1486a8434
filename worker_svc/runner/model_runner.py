"""Model runner: runs one step on a device, from a plan to sampled tokens.

Owned by the compute thread; allocates the KV cache when it is created. It keeps sampled tokens for its own next step, so plans
may be queued before results are read. An exception from `execute` means that the device failed; a single failed request is an
entry of the result.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.layout_check import check_positions
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import GrammarRows, Ints, SchedulerOutput
from tetrad.worker_svc.core.request_table import RequestTable, SlotPart
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, finished
from tetrad.worker_svc.core.sampler_options import DEFAULT_SAMPLER, SamplerOptions
from tetrad.worker_svc.core.step_inputs import StepInputs, build_step_inputs
from tetrad.worker_svc.core.verification import verify
from tetrad.worker_svc.kv_cache.block_contents import HostBlockContents
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.media.slot_encoded import step_media
from tetrad.worker_svc.models.interface import Model
from tetrad.worker_svc.runner.draft_outputs import DraftOutputs
from tetrad.worker_svc.runner.drafts import HostDrafts, NoHostDrafts, SampledStep
from tetrad.worker_svc.runner.loras import NoLoras, SlotLoras
from tetrad.worker_svc.runner.pooling_rows import NoPooling, PoolingRows
from tetrad.worker_svc.runner.prompt_embeds import SlotEmbeds
from tetrad.worker_svc.runner.prompt_logprobs import AskedPrompts, collect, prompt_failures
from tetrad.worker_svc.runner.prompt_scores import AskedScores, collect_scores, score_failures
from tetrad.worker_svc.runner.step_result import step_result
from tetrad.worker_svc.runner.token_times import token_times
from tetrad.worker_svc.runner.warm_up import dummy_plans
from tetrad.worker_svc.sampler.custom_classes import make_processors
from tetrad.worker_svc.sampler.sampler import Sampled, Sampler, join_sampled


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step whose plan was applied, before the forward pass.

    Attributes:
        plan, inputs: the step's plan and inputs.
        handles: [R], the requests of the rows.
        failures: handles of requests that cannot run, with their errors.
        started: start time in seconds, from `time.perf_counter`.
        input_seconds: duration of building the inputs.
    """

    plan: SchedulerOutput
    inputs: StepInputs
    handles: Ints
    failures: Sequence[tuple[int, TetradError]]
    started: float
    input_seconds: float


class ModelRunner(Generic[M]):
    """Executes plans with a loaded model; see Runner.

    Args:
        model: the model with its weights.
        layout: KV blocks and limits; FailedPrecondition if the model has fewer positions than max_model_len.
        pooling: creates the pooling part for an input batch; None: the model only generates.
        make_cache: creates the KV cache.
        loras: the model's adapters; None: the model does not support adapters.
        sampling: settings of the sampler.
        media: the tower's modality, and the cache with the embeddings of images; None: the model takes only text.
        settle_drafts: called after the verification of a step's drafts, with the number of known tokens of each slot; None: the
            model has no states.
    """

    def __init__(
        self,
        model: Model[M],
        layout: KvLayout,
        pooling: Callable[[InputBatch], PoolingRows] | None = None,
        make_cache: Callable[..., KvCache] = KvCache,
        loras: ModelLoras | None = None,
        settle_drafts: Callable[[Ints], None] | None = None,
        sampling: SamplerOptions = DEFAULT_SAMPLER,
        media: ModelMedia | None = None,
    ) -> None:
        check_positions(layout, model.config.max_position_embeddings)
        self._model, self.layout = model, layout
        self._kv_cache = make_cache(
            model.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
        )
        self._batch = InputBatch.of_layout(layout, self._kv_cache.num_groups)
        vocab_size = model.config.vocab_size
        made = make_processors(
            sampling.processors,
            torch.device("cpu"),
            vocab_size=vocab_size,
            max_model_len=layout.max_model_len,
            max_num_seqs=layout.max_num_seqs,
        )
        self.sampler = Sampler(self._batch, vocab_size, made, sampling.logprobs_mode)
        self._has_logits = sampling.logprobs_mode.has_logits
        self._asked_prompts, self._asked_scores = AskedPrompts(), AskedScores()
        self._pooling: PoolingRows = NoPooling() if pooling is None else pooling(self._batch)
        self._loras = NoLoras() if loras is None else SlotLoras(loras, layout.max_num_seqs)
        self._embeds = SlotEmbeds(model.embedding_size)
        self._media, self._times = step_media(media), token_times(media)
        by_slot: tuple[SlotPart, ...] = (
            self._pooling,
            self._loras,
            self._embeds,
            self._media,
            self._times,
            self.sampler,
            self._asked_scores,
        )
        self._requests = RequestTable(
            self._batch,
            vocab_size,
            (*by_slot, self._asked_prompts),
            [part.check for part in by_slot],
            has_states=bool(model.kv_cache_spec.state_size),
        )
        self._settle_drafts = settle_drafts or settle_nothing
        self._drafts: HostDrafts = NoHostDrafts()

    def draft_with(self, drafts: HostDrafts) -> None:
        """Let a drafter propose tokens after each step; called before the first one."""
        self._drafts = drafts

    @property
    def batch(self) -> InputBatch:
        """The input batch with the known requests."""
        return self._batch

    @property
    def block_contents(self) -> HostBlockContents | None:
        """See SharesBlocks."""
        layers = self._kv_cache.layers_to_move
        return HostBlockContents(layers) if layers else None

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Execute one step and return its result."""
        begun = self._begin(plan)
        if isinstance(begun, ModelRunnerOutput):
            return begun
        return self._complete(begun, self._forward(begun.inputs))

    def _begin(self, plan: SchedulerOutput) -> BegunStep | ModelRunnerOutput:
        """Apply a plan to the known requests; return the result at once if no row is left to compute."""
        started = time.perf_counter()
        self._kv_cache.move(plan)
        self._drafts.begin(plan)
        rows = self._requests.apply(plan)
        if not len(rows.slots):
            return ModelRunnerOutput(plan.step_id, _NONE, _NONE, failures=rows.failures)
        inputs = self._media.placed(build_step_inputs(self._batch, rows.slots, rows.num_computed, rows.num_scheduled))
        inputs = self._times.placed(inputs, self._batch)
        handles = self._batch.handles[inputs.slots]  # a copy
        return BegunStep(plan, inputs, handles, rows.failures, started, time.perf_counter() - started)

    def _complete(self, begun: BegunStep, hidden: torch.Tensor) -> ModelRunnerOutput:
        """Compute the result of a step from the hidden states [T, hidden] after the last layer."""
        plan, inputs = begun.plan, begun.inputs
        chunks = self._asked_prompts.chunks(inputs, self._batch)
        prompt_logprobs = collect(chunks, hidden, self._prompt_logits, has_logits=self._has_logits)
        scored = self._asked_scores.chunks(inputs, self._batch)
        prompt_scores = collect_scores(scored, hidden, self._prompt_logits, has_logits=self._has_logits)
        prompt_scores += self._times.finished(inputs)
        pooled, pooling_failures = self._pooling.collect(inputs, hidden)
        slots, sampled = self._sample(plan, inputs, hidden)
        handles = self._batch.handles[slots].astype(np.uint32)
        failures = dict([*prompt_failures(prompt_logprobs), *score_failures(prompt_scores), *pooling_failures])
        failures.update((int(handles[row]), error) for row, error in sampled.failures)
        for handle in failures:
            self._requests.set_aside(handle)
        sampled_at = time.perf_counter()
        proposals = self._drafts.propose(SampledStep(plan, inputs, begun.handles, hidden, handles.astype(np.int64)))
        return step_result(
            plan.step_id,
            handles,
            sampled,
            failures=[*begun.failures, *failures.items()],
            prompt_logprobs=prompt_logprobs,
            prompt_scores=prompt_scores,
            pooled=pooled,
            compute_seconds=(ended := time.perf_counter()) - begun.started,
            draft_seconds=ended - sampled_at if plan.num_spec_tokens else 0.0,
            input_seconds=begun.input_seconds,
            has_drafts=plan.drafts is not None,
            proposals=proposals,
        )

    def forget_all(self) -> None:
        """Remove every request; KV blocks keep their content until they are written again."""
        self._requests.forget_all()
        self._drafts.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps of typical sizes on the null block: libraries prepare kernels for each size on its first use."""
        plans = dummy_plans(self.layout)
        for completed, plan in enumerate(plans, 1):
            finished(self.execute(plan))
            self.forget_all()
            report(completed, len(plans))

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the hidden states [T, hidden] of the step's tokens."""
        self._loras.select_tokens(inputs)
        metadata = self._model.attention.build_metadata(inputs, self._batch)
        token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
        given = self._media.gather(inputs, self._embeds.gather(inputs))
        return self._model.forward(token_ids, positions, self._kv_cache.layers, metadata, given)

    def _prompt_logits(self, hidden: torch.Tensor, slot: int) -> torch.Tensor:
        """Return the logits [N, V] of hidden states [N, hidden] of one slot's prompt."""
        self._loras.select_rows(np.full(len(hidden), slot))
        return self._model.logits(hidden)

    def _sample(self, plan: SchedulerOutput, inputs: StepInputs, hidden: torch.Tensor) -> tuple[Ints, Sampled]:
        """Sample tokens for the requests whose last known token was computed, and append them to the batch."""
        rows = inputs.sampling_rows
        rows = rows[self._pooling.generating(inputs.slots[rows])]
        slots = inputs.slots[rows]
        if not len(rows):
            return slots, Sampled(slots)
        last = inputs.first_token[rows] + inputs.num_scheduled[rows] - 1
        if plan.drafts is not None:
            return self._verify(plan.grammar, slots, last - self._batch.num_drafts[slots], hidden)
        if len(rows) < len(hidden):
            hidden = hidden[torch.from_numpy(last)]
        sampled = self._choose(hidden, slots, plan.grammar)
        self._batch.append_sampled(slots, sampled.token_ids)
        return slots, sampled

    def _choose(self, hidden: torch.Tensor, slots: Ints, grammar: GrammarRows | None) -> Sampled:
        """Sample a token for each row of hidden states [R, hidden]."""
        self._loras.select_rows(slots)
        if self.sampler.needs_logits(slots, grammar):
            return self.sampler.sample(self._model.logits(hidden), slots, grammar)
        return self.sampler.take(*self._model.argmax(hidden))

    def _verify(self, grammar: GrammarRows | None, slots: Ints, first: Ints, hidden: torch.Tensor) -> tuple[Ints, Sampled]:
        """Verify drafts: sample at each of their places; hidden[first] predicts the token at a request's first place."""

        def select(rows: Ints) -> None:
            self._loras.select_rows(slots[rows])

        outputs = DraftOutputs(self._model, hidden, first, self._batch.num_drafts[slots], select)

        def sample(rows: Ints, place: int) -> tuple[Sampled, Ints, Ints]:
            masks = None if grammar is None else grammar.of_place(place)
            if self.sampler.needs_logits(slots[rows], masks):
                sampled = self.sampler.sample(outputs.logits(rows, place), slots[rows], masks)
            else:
                sampled = self.sampler.take(*outputs.argmax(rows, place))
            if place and sampled.failures:
                sampled, stays = sampled.without_failed()
                rows = rows[stays]
            return sampled, rows, sampled.token_ids

        found = verify(self._batch, slots, sample)
        self._settle_drafts(self._batch.num_tokens)
        return slots[np.concatenate([rows for rows, _ in found])], join_sampled([sampled for _, sampled in found])


def settle_nothing(num_tokens: Ints) -> None:
    """Do nothing: keys and values of rejected drafts are written again."""


_NONE = np.empty(0, np.uint32)
