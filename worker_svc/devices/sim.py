"""Simulated device: has no weights; a cost model gives the time of steps, and tokens are a hash of (seed, position).

For control-plane benchmarks, chaos tests and planning. A request gets the same tokens in any batch and after any lost worker.
It never gets EOS or another special id. Only the model's metadata is read; torch is never imported.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InternalError, TetradError
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.pooling_use import check_generates
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import (
    KvGroup,
    KvLayout,
    LoadedModel,
    LoadRequest,
    ModelInfo,
    Progress,
    refuse_drafter,
    refuse_loras,
    with_media,
)
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.kv_transfer import BlockContents
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import GrammarRows, Ints, NewRequest, SchedulerOutput
from tetrad.worker_svc.core.request_table import (
    RequestTable,
    refuse_adapters,
    refuse_extra_args,
    refuse_media,
    refuse_pooling,
    refuse_prompt_embeds,
)
from tetrad.worker_svc.core.result import ModelRunnerOutput, PendingStep
from tetrad.worker_svc.core.verification import verify
from tetrad.worker_svc.devices.kv_memory import kv_cache_bytes
from tetrad.worker_svc.devices.sim_logprobs import SimLogprobs
from tetrad.worker_svc.devices.sim_media import SimMedia, sim_media
from tetrad.worker_svc.devices.sim_queue import SimQueue
from tetrad.worker_svc.families.check import check_config
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.model_facts.config import ModelConfig

_SPECIAL_IDS = 100
"""Number of ids at each end of the vocabulary that are never produced."""
_TOKENS_BEFORE_FAILURE = 3
_CHECKS = (refuse_pooling, refuse_extra_args, refuse_adapters, refuse_prompt_embeds)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CostModel:
    """The duration of a step, in seconds: a fixed part, a part per scheduled token, and a part per token of context."""

    per_step: float = 0.0
    per_token: float = 0.0
    per_context_token: float = 0.0

    def seconds(self, num_tokens: int, num_context_tokens: int) -> float:
        """Return the duration of a step in seconds."""
        return self.per_step + self.per_token * num_tokens + self.per_context_token * num_context_tokens


class SimDevice:
    """The simulated Device; see Device."""

    name = "sim"
    verifies_drafts = True
    takes_embeddings = False
    keeps_states = False
    shares_experts = False

    def __init__(self, settings: WorkerSettings) -> None:
        self._memory_bytes = int(settings.sim_kv_cache_memory_gib * (1 << 30))
        self._kv_cache_gib = settings.kv_cache_memory_gib
        self._crash_token_id, self._fail_token_id = settings.sim_crash_token_id, settings.sim_fail_token_id
        self._cost = CostModel(
            settings.sim_seconds_per_step, settings.sim_seconds_per_token, settings.sim_seconds_per_context_token
        )
        self._seconds_per_embedding = settings.sim_seconds_per_embedding

    def set_up(self) -> None:
        """Do nothing: there is no device."""

    def load_model(self, request: LoadRequest, report: Progress) -> "SimModel":
        """Read the model's metadata."""
        refuse_loras(request, "the sim device")
        refuse_drafter(request, "the sim device")
        overridden = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
        check_generates(request, overridden, self.name)
        config = check_config(overridden, self.name)
        report(1, 1)
        media = sim_media(request.path, overridden, config, self._seconds_per_embedding, takes_media=request.takes_media)
        return SimModel(request.model, config, self._cost, self._crash_token_id, self._fail_token_id, media)

    def available_memory(
        self,
        model: LoadedModel,  # noqa: ARG002 - no device
        *,
        utilization: float,  # noqa: ARG002
        max_num_batched_tokens: int,  # noqa: ARG002
        max_num_encoder_tokens: int = 0,  # noqa: ARG002
    ) -> int:
        """Return the simulated memory of the settings."""
        return kv_cache_bytes(
            self._kv_cache_gib, self._memory_bytes, default_bytes=self._memory_bytes, why="sim_kv_cache_memory_gib"
        )

    def give_back_memory(self) -> None:
        """Do nothing: no memory was allocated."""

    def check(self) -> None:
        """Do nothing: a failed step does not affect later steps."""


class SimModel:
    """A LoadedModel that consists of a description only.

    Attributes:
        media: its simulated tower; None: it takes only text.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        cost: CostModel,
        crash_token_id: int | None,
        fail_token_id: int | None,
        media: ModelMedia | None = None,
    ) -> None:
        self._config, self._cost, self.media = config, cost, media
        self._groups = group_layers(config.cache_kinds)
        self._crash_token_id, self._fail_token_id = crash_token_id, fail_token_id
        self.loras = None
        info = ModelInfo(
            model=name,
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dtype="float32",
            num_parameters=0,
            weights_size_bytes=0,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
        )
        self.info = with_media(info, media)

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups that the real model's KV cache would have in float32."""
        config = self._config
        page = max(block_size * 2 * config.num_kv_heads * config.head_dim, config.state_size)
        size = len(self._groups[0].layers) * page * 4
        return tuple(
            KvGroup(group.layers, size, config.num_kv_heads, config.head_dim, "float32", group.sliding_window, group.is_state)
            for group in self._groups
        )

    def make_runner(self, layout: KvLayout) -> "SimRunner":
        """Return a runner; nothing is allocated."""
        return SimRunner(
            self._config.vocab_size,
            layout,
            self._cost,
            num_groups=len(self._groups),
            crash_token_id=self._crash_token_id,
            fail_token_id=self._fail_token_id,
            media=self.media,
        )

    def sleep(self) -> None:
        """Do nothing: there are no weights."""

    def wake_up(self) -> None:
        """Do nothing: there are no weights."""


class SimRunner:
    """The Runner of the simulated device; see Runner.

    Args:
        vocab_size: the model's vocabulary size.
        layout: limits of the plans.
        cost: computes the duration of a step.
        num_groups: number of the model's KV groups.
        queue: computes when steps begin and end.
        crash_token_id: a prompt with this token ends the process, like a fault of a real device; None: no token does.
        fail_token_id: a prompt with this token fails alone after three tokens, like a row of NaN logits; None: no token does.
        media: the simulated tower and its cache; None: prompts have only text.
    """

    def __init__(
        self,
        vocab_size: int,
        layout: KvLayout,
        cost: CostModel,
        queue: SimQueue | None = None,
        *,
        num_groups: int = 1,
        crash_token_id: int | None = None,
        fail_token_id: int | None = None,
        media: ModelMedia | None = None,
    ) -> None:
        self._cost, self._queue, self._crash_token_id = cost, queue or SimQueue(), crash_token_id
        self._batch = InputBatch.of_layout(layout, num_groups)
        self._seeds = _Seeds(layout.max_num_seqs, fail_token_id)
        self._first_id = min(_SPECIAL_IDS, vocab_size // 4)
        self._num_ids = max(1, vocab_size - 2 * self._first_id)
        self._logprobs = SimLogprobs(vocab_size)
        self._media = () if media is None else (SimMedia(media),)
        checks = (*_CHECKS, *([each.check for each in self._media] or [refuse_media]))
        self._requests = RequestTable(self._batch, vocab_size, (self._seeds, self._logprobs, *self._media), checks)

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return len(self._batch)

    @property
    def block_contents(self) -> BlockContents:
        """See SharesBlocks."""
        return _NoContents()

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | PendingStep:
        """Produce the tokens of a step, and queue it for its simulated duration; a step without duration ends at once."""
        started = time.perf_counter()
        if self._crash_token_id is not None:
            self._crash_if_told(plan.new_requests)
        rows = self._requests.apply(plan)
        for media in self._media:
            media.check_encoded(self._batch, rows)
        input_seconds = time.perf_counter() - started
        batch = self._batch
        is_last = rows.num_computed + rows.num_scheduled == (batch.num_tokens + batch.num_drafts)[rows.slots]
        slots, failures = self._set_failing_aside(rows.slots[is_last])
        slots, tokens = self._sample(slots, plan.grammar) if plan.drafts is None else self._verify(slots, plan.grammar)
        handles = batch.handles[slots].astype(np.uint32)
        cost = self._cost.seconds(int(rows.num_scheduled.sum()), int(rows.num_computed.sum()))
        result = ModelRunnerOutput(
            step_id=plan.step_id,
            handles=handles,
            token_ids=tokens.astype(np.uint32),
            logprobs=self._logprobs.of_tokens(slots, handles, tokens),
            prompt_logprobs=self._logprobs.of_prompts(slots, handles),
            prompt_scores=self._logprobs.scores_of_prompts(slots, handles),
            failures=[*rows.failures, *failures],
            compute_seconds=time.perf_counter() - started,
            input_seconds=input_seconds,
            has_drafts=plan.drafts is not None,
        )
        # The simulated step begins before its tokens are produced, so the time for that is not added to its duration.
        return self._queue.add(result, cost, started) if cost else result

    def forget_all(self) -> None:
        """Remove every request."""
        self._requests.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Report completion only: the first step is as fast as all others."""
        report(1, 1)

    def token_ids(self, seeds: Ints, positions: Ints) -> Ints:
        """Return the tokens at absolute positions [N] of requests with seeds [N]: splitmix64, mapped to ordinary ids."""
        mixed = _splitmix64(_splitmix64(seeds.astype(np.uint64)) + positions.astype(np.uint64))
        ordinary: Ints = (mixed % np.uint64(self._num_ids)).astype(np.int64)
        return ordinary + self._first_id

    def _sample(self, slots: Ints, grammar: GrammarRows | None) -> tuple[Ints, Ints]:
        """Produce one token for each slot and append it to the batch; return the slots and the tokens."""
        tokens = self._next_tokens(slots, grammar)
        self._batch.append_sampled(slots, tokens)
        return slots, tokens

    def _verify(self, slots: Ints, grammar: GrammarRows | None) -> tuple[Ints, Ints]:
        """Produce tokens while drafts equal them, and append them; return their slots (repeated) and the tokens."""

        def sample(rows: Ints, place: int) -> tuple[Ints, Ints, Ints]:
            if place:  # a request that fails after an accepted draft fails in the next step
                rows = rows[~self._seeds.failing(slots[rows], self._batch.num_tokens[slots[rows]])]
            tokens = self._next_tokens(slots[rows], None if grammar is None else grammar.of_place(place))
            return tokens, rows, tokens

        found = verify(self._batch, slots, sample)
        if not found:
            return slots, slots
        return slots[np.concatenate([rows for rows, _ in found])], np.concatenate([tokens for _, tokens in found])

    def _next_tokens(self, slots: Ints, grammar: GrammarRows | None) -> Ints:
        """Return the next token of each slot; a mask replaces a token that it forbids."""
        tokens = self.token_ids(self._seeds.of(slots), self._batch.num_tokens[slots])
        return tokens if grammar is None else _allowed(tokens, self._batch.handles[slots], grammar)

    def _crash_if_told(self, requests: Sequence[NewRequest]) -> None:
        if any(self._crash_token_id in request.token_ids[: request.num_prompt_tokens] for request in requests):
            os._exit(1)

    def _set_failing_aside(self, slots: Ints) -> tuple[Ints, Sequence[tuple[int, TetradError]]]:
        """Return the slots that get a token, and the failures of the other requests."""
        failing = self._seeds.failing(slots, self._batch.num_tokens[slots])
        if not failing.any():
            return slots, ()
        handles = self._batch.handles[slots[failing]].tolist()
        for handle in handles:
            self._requests.set_aside(handle)
        error = InternalError("The simulated device fails this prompt, as its setting sim-fail-token-id says.")
        return slots[~failing], [(handle, error) for handle in handles]


class _Seeds:
    """A SlotListener that keeps the requests' seeds, and the position from which each request fails.

    Args:
        num_slots: number of slots in the batch.
        fail_token_id: see SimRunner.
    """

    def __init__(self, num_slots: int, fail_token_id: int | None) -> None:
        self._fail_token_id = fail_token_id
        self._seeds: Ints = np.zeros(num_slots, np.int64)
        self._fails_at: Ints = np.full(num_slots, _NEVER, np.int64)

    def add(self, slot: int, request: NewRequest) -> None:
        self._seeds[slot] = request.sampling.seed
        fails = self._fail_token_id is not None and self._fail_token_id in request.token_ids[: request.num_prompt_tokens]
        self._fails_at[slot] = request.num_prompt_tokens + _TOKENS_BEFORE_FAILURE if fails else _NEVER

    def remove(self, slot: int) -> None:
        self._fails_at[slot] = _NEVER

    def of(self, slots: Ints) -> Ints:
        return self._seeds[slots]

    def failing(self, slots: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
        failing: npt.NDArray[np.bool_] = positions >= self._fails_at[slots]
        return failing


class _NoContents:
    """The content of simulated blocks: one byte each, because transfers take time for a number of bytes."""

    block_bytes = 1

    def read(self, blocks: Ints) -> bytes:
        """Return a zero for each block."""
        return bytes(len(blocks))

    def write(self, blocks: Ints, content: bytes) -> None:
        """Do nothing: tokens do not depend on the content."""


def _allowed(tokens: Ints, handles: Ints, grammar: GrammarRows) -> Ints:
    """Return the tokens of handles [R]; those of constrained requests are mapped to allowed tokens, if the mask allows any."""
    row_of = {handle: row for row, handle in enumerate(handles.tolist())}
    for handle, words in zip(grammar.handles.tolist(), grammar.bitmask, strict=True):
        ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        row = row_of.get(handle)
        if row is not None and len(ids):
            tokens[row] = ids[tokens[row] % len(ids)]
    return tokens


def _splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
