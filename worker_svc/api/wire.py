"""Wire: protobuf messages of the worker <-> own values (plan.py).

Called by servicer.py only. Columns are viewed, not copied, so a 32,000-token prompt costs microseconds. What this worker
cannot do for a request (multimodal items, LoRA, pooling, ...) becomes that request's refusal; what is wrong with the message
as a whole raises InvalidRequest.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unsupported
from tetrad.services.request_context import RequestContext
from tetrad.services.status import to_status
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.plan import (
    CachedRequests,
    GrammarRows,
    Ints,
    LogprobRows,
    NewRequest,
    PromptLogprobs,
    SamplingSpec,
    StepPlan,
    StepResult,
)

_Params = tuple[types_pb2.SamplingParams, SamplingSpec]
"""Sampling parameters as they came, and as own value."""


def read_plan(message: worker_pb2.SchedulerOutput) -> StepPlan:
    """Return the plan that a SchedulerOutput stands for; InvalidRequest if its columns disagree."""
    if message.HasField("draft_tokens"):
        raise InvalidRequest("This worker does not verify draft tokens; turn speculative decoding off.")
    shared = [_read_params(params) for params in message.shared_sampling_params]
    return StepPlan(
        step_id=message.step_id,
        new_requests=[_read_new(new, shared) for new in message.new_requests],
        cached=_read_cached(message.cached_requests),
        removed_handles=ints(message.removed_handles).tolist(),
        grammar=_read_grammar(message.grammar_bitmask) if message.HasField("grammar_bitmask") else None,
        block_copies=_read_copies(message, "block_copies"),
        blocks_to_zero=ints(message.block_ids_to_zero) if message.block_ids_to_zero else None,
        swap_out=_read_copies(message, "swap_out"),
        swap_in=_read_copies(message, "swap_in"),
    )


def _read_copies(message: worker_pb2.SchedulerOutput, name: str) -> tuple[Ints, Ints] | None:
    if not message.HasField(name):
        return None
    copies = getattr(message, name)
    return ints(copies.source_block_ids), ints(copies.target_block_ids)


def write_result(result: StepResult) -> worker_pb2.ModelRunnerOutput:
    """Return the message that a result stands for."""
    message = worker_pb2.ModelRunnerOutput(
        step_id=result.step_id,
        handles=u32(result.handles),
        num_tokens=u32(np.ones(len(result.handles), np.uint32)),
        token_ids=u32(result.token_ids),
        compute_seconds=result.compute_seconds,
    )
    message.logprobs_by_width.extend(
        worker_pb2.SampleLogprobs(handles=u32(each.handles), columns=_write_logprobs(each.rows)) for each in result.logprobs
    )
    message.prompt_logprobs.extend(_write_prompt_logprobs(item) for item in result.prompt_logprobs)
    message.failures.extend(
        worker_pb2.RequestFailure(handle=handle, status=to_status(error)) for handle, error in result.failures
    )
    return message


def ints(column: bytes) -> Ints:
    """Return a u32 column as int64; InvalidRequest if its length is not a multiple of four."""
    return _words(column).astype(np.int64)


def _words(column: bytes) -> npt.NDArray[np.uint32]:
    if len(column) % 4:
        raise InvalidRequest(f"A column of 4-byte numbers cannot have {len(column)} bytes.")
    return np.frombuffer(column, "<u4")


def u32(values: npt.NDArray[Any]) -> bytes:
    """Return `values` as a u32 column."""
    return values.astype("<u4").tobytes()


def _read_new(message: worker_pb2.NewRequestData, shared: Sequence[_Params]) -> NewRequest:
    params, sampling = _params_of(message, shared)
    return NewRequest(
        handle=message.handle,
        request_id=message.request_id,
        token_ids=ints(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        num_scheduled_tokens=message.num_scheduled_tokens,
        block_ids=ints(message.block_ids[0]) if message.block_ids else np.empty(0, np.int64),
        sampling=replace(sampling, seed=_seed_of(message, params)),
        eos_token_id=message.eos_token_id if message.HasField("eos_token_id") else None,
        context=RequestContext.from_headers(message.trace_headers),
        refusal=_refusal(message, sampling),
    )


def _params_of(message: worker_pb2.NewRequestData, shared: Sequence[_Params]) -> _Params:
    """Return a request's parameters: its own, or those that it shares with others."""
    if not message.HasField("sampling_params_index"):
        return _read_params(message.sampling_params)
    if message.sampling_params_index >= len(shared):
        text = f"A request has parameters number {message.sampling_params_index} of {len(shared)} shared ones."
        raise InvalidRequest(text)
    return shared[message.sampling_params_index]


def _seed_of(message: worker_pb2.NewRequestData, params: types_pb2.SamplingParams) -> int:
    """Return a request's seed: its own, its parameters', or one from its id, so that it keeps its noise after a preemption."""
    if message.HasField("seed"):
        return message.seed
    return params.seed if params.HasField("seed") else zlib.crc32(message.request_id.encode())


def _read_params(params: types_pb2.SamplingParams) -> _Params:
    return params, read_sampling(params)


def read_sampling(params: types_pb2.SamplingParams) -> SamplingSpec:
    """Return the sampling parameters with vLLM's defaults for what is absent."""

    def given(name: str, default: Any) -> Any:
        return getattr(params, name) if params.HasField(name) else default

    return SamplingSpec(
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=max(given("top_k", 0), 0),
        min_p=given("min_p", 0.0),
        seed=given("seed", 0),
        min_tokens=given("min_tokens", 0),
        stop_token_ids=tuple(params.stop_token_ids),
        num_logprobs=given("logprobs", None),
        num_prompt_logprobs=given("prompt_logprobs", None),
        presence_penalty=given("presence_penalty", 0.0),
        frequency_penalty=given("frequency_penalty", 0.0),
        repetition_penalty=given("repetition_penalty", 1.0),
        logit_bias=dict(params.logit_bias),
        allowed_token_ids=tuple(params.allowed_token_ids),
        bad_words=tuple(tuple(ints(word.ids).tolist()) for word in params.bad_words_token_ids),
        logprob_token_ids=tuple(params.logprob_token_ids),
        thinking_token_budget=given("thinking_token_budget", None),
        thinking_start_ids=tuple(params.thinking_start_token_ids),
        thinking_end_ids=tuple(params.thinking_end_token_ids),
    )


def _refusal(message: worker_pb2.NewRequestData, sampling: SamplingSpec) -> TetradError | None:
    wanted = {
        "pooling": message.HasField("pooling_params"),
        "LoRA adapters": message.HasField("lora_request"),
        "multimodal items": bool(message.mm_features),
        "prompt embeddings": message.HasField("prompt_embeds"),
    }
    missing = [name for name, asked in wanted.items() if asked]
    if missing:
        return Unsupported(f"This worker does not support {', '.join(missing)}.")
    if sampling.thinking_token_budget is not None and not sampling.thinking_end_ids:
        return InvalidRequest("thinking_token_budget needs thinking_end_token_ids.", field="thinking_token_budget")
    if len(message.block_ids) > 1:
        return InternalError(f"This worker has 1 KV cache group, but the plan names {len(message.block_ids)}.")
    return None


def _read_cached(message: worker_pb2.CachedRequestData) -> CachedRequests:
    handles = ints(message.handles)
    blocks = message.new_blocks[0] if message.new_blocks else worker_pb2.BlockIdColumns()
    num_new_blocks = ints(blocks.num_blocks) if blocks.num_blocks else np.zeros(len(handles), np.int64)
    cached = CachedRequests(
        handles=handles,
        num_scheduled_tokens=ints(message.num_scheduled_tokens),
        num_computed_tokens=ints(message.num_computed_tokens),
        num_new_blocks=num_new_blocks,
        new_block_ids=ints(blocks.block_ids),
    )
    lengths = {len(handles), len(cached.num_scheduled_tokens), len(cached.num_computed_tokens), len(num_new_blocks)}
    if len(lengths) != 1 or int(num_new_blocks.sum()) != len(cached.new_block_ids):
        raise InvalidRequest(
            f"Columns of cached_requests disagree: {sorted(lengths)} rows, {len(cached.new_block_ids)} blocks."
        )
    return cached


def _read_grammar(message: worker_pb2.GrammarBitmask) -> GrammarRows:
    handles, words = ints(message.handles), _words(message.bitmask)
    if len(words) != len(handles) * message.num_words:
        raise InvalidRequest(f"The bitmask has {len(words)} words for {len(handles)} rows of {message.num_words}.")
    return GrammarRows(handles=handles, bitmask=words.reshape(len(handles), message.num_words))


def _write_logprobs(rows: LogprobRows) -> types_pb2.LogprobsColumns:
    return types_pb2.LogprobsColumns(
        token_ids=u32(rows.token_ids),
        logprobs=rows.logprobs.astype("<f4").tobytes(),
        ranks=u32(rows.ranks),
        num_positions=rows.token_ids.shape[0],
        width=rows.token_ids.shape[1],
    )


def _write_prompt_logprobs(item: PromptLogprobs) -> worker_pb2.PromptLogprobs:
    return worker_pb2.PromptLogprobs(handle=item.handle, start=item.start, columns=_write_logprobs(item.rows))
