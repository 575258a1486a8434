"""Wire: decodes protobuf messages to the worker's values (plan.py) and encodes them back.

Called by servicer.py only. Columns are views, not copies, so decoding a prompt of 32,000 tokens takes microseconds. An
unsupported field of a request becomes the refusal of that request; a malformed message raises InvalidRequest.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.status import to_status
from tetrad.services.rpc.struct_values import decode_struct
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.api.kv_transfer_wire import decode_orders
from tetrad.worker_svc.api.media_wire import decode_spans
from tetrad.worker_svc.api.pooling_wire import decode_pooling, encode_pooled, pooling_problem
from tetrad.worker_svc.api.prompt_embeds_wire import decode_prompt_embeds
from tetrad.worker_svc.core.plan import (
    CachedRequests,
    DraftTokens,
    GrammarRows,
    Ints,
    NewRequest,
    SamplingSpec,
    SchedulerOutput,
    ScoreIds,
    SpeechRules,
    TimestampRules,
)
from tetrad.worker_svc.core.result import LogprobRows, ModelRunnerOutput, PromptLogprobs, PromptScores
from tetrad.worker_svc.worker.worker import Worker

_OWNER = "This worker"
_NO_ID = 0xFFFFFFFF
UNREAD_OF_PLAN = UnreadFields(
    worker_pb2.SchedulerOutput,
    (
        "encoder_inputs",
        "kv_connector_metadata",
        "block_copies",
        "block_ids_to_zero",
    ),
    owner=_OWNER,
    error=InvalidRequest,
)
UNREAD_OF_NEW_REQUEST = UnreadFields(
    worker_pb2.NewRequestData,
    ("num_encoder_tokens",),
    owner=_OWNER,
)
UNREAD_OF_PARAMS = UnreadFields(types_pb2.SamplingParams, ("structured_outputs",), owner=_OWNER)


def capabilities_of(worker: Worker) -> Sequence[types_pb2.Capability]:
    """Return a worker's capabilities with its present model, in addition to the protocol revision that both sides have."""
    has = {
        types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS: True,
        types_pb2.CAPABILITY_DRAFT_TOKENS: worker.verifies_drafts,
        types_pb2.CAPABILITY_WORKER_GROUP: worker.joins_groups,
        types_pb2.CAPABILITY_PROMPT_EMBEDS: worker.takes_embeddings,
        types_pb2.CAPABILITY_DRAFTS_WITH_STATES: worker.keeps_states,
        types_pb2.CAPABILITY_MULTIMODAL: worker.media is not None,
        types_pb2.CAPABILITY_KV_TRANSFER: worker.shares_blocks,
        types_pb2.CAPABILITY_KV_TRANSFER_CANCEL: worker.shares_blocks,
        types_pb2.CAPABILITY_WEIGHT_UPDATE: True,
        types_pb2.CAPABILITY_LOGPROBS_MODES: True,
        types_pb2.CAPABILITY_PROMPT_SCORES: True,
        types_pb2.CAPABILITY_TOKEN_TIMES: True,
    }
    return [capability for capability, is_there in has.items() if is_there]


_Params = tuple[types_pb2.SamplingParams, SamplingSpec]
"""Sampling parameters as the message, and as the worker's value."""


def decode_plan(message: worker_pb2.SchedulerOutput) -> SchedulerOutput:
    """Return the plan of a SchedulerOutput message; raise InvalidRequest if its columns contradict each other."""
    UNREAD_OF_PLAN.refuse(message)
    shared = [_decode_params(params) for params in message.shared_sampling_params]
    return SchedulerOutput(
        step_id=message.step_id,
        new_requests=[_decode_new(new, shared) for new in message.new_requests],
        cached=_decode_cached(message.cached_requests),
        removed_handles=ints(message.removed_handles).tolist(),
        grammar=_decode_grammar(message.grammar_bitmask) if message.HasField("grammar_bitmask") else None,
        drafts=_decode_drafts(message.draft_tokens) if message.HasField("draft_tokens") else None,
        num_spec_tokens=message.num_spec_tokens,
        swap_out=_decode_copies(message, "swap_out"),
        swap_in=_decode_copies(message, "swap_in"),
        freed_media=tuple(message.freed_encoder_hashes),
        transfers=decode_orders(message.kv_transfers) if message.HasField("kv_transfers") else None,
    )


def _decode_copies(message: worker_pb2.SchedulerOutput, name: str) -> tuple[Ints, Ints] | None:
    if not message.HasField(name):
        return None
    copies = getattr(message, name)
    return ints(copies.source_block_ids), ints(copies.target_block_ids)


def encode_result(result: ModelRunnerOutput) -> worker_pb2.ModelRunnerOutput:
    """Return the message of a result."""
    handles, num_tokens, token_ids = _columns_of_tokens(result)
    message = worker_pb2.ModelRunnerOutput(
        step_id=result.step_id,
        handles=u32(handles),
        num_tokens=u32(num_tokens),
        token_ids=u32(token_ids),
        compute_seconds=result.compute_seconds,
        draft_seconds=result.draft_seconds,
    )
    for group in result.logprobs:
        message.logprobs_by_width.add(handles=u32(group.handles), columns=_encode_logprobs(group.rows))
    for item in result.prompt_logprobs:
        message.prompt_logprobs.append(_encode_prompt_logprobs(item))
    for scored in result.prompt_scores:
        message.prompt_scores.add(handle=scored.handle, scores=_encode_scores(scored))
    for pooled in result.pooled:
        message.pooling_outputs.append(encode_pooled(pooled))
    for handle, error in result.failures:
        message.failures.add(handle=handle, status=to_status(error))
    if result.proposals is not None:
        columns = (result.proposals.handles, result.proposals.num_tokens, result.proposals.token_ids)
        draft = message.draft_tokens
        draft.handles, draft.num_tokens, draft.token_ids = map(u32, columns)
    return message


def _columns_of_tokens(result: ModelRunnerOutput) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the handles, each once, the number of tokens of each, and the tokens."""
    if not result.has_drafts:
        return result.handles, np.ones(len(result.handles), np.uint32), result.token_ids
    handles, counts = np.unique(result.handles, return_counts=True)
    return handles, counts, result.token_ids[np.argsort(result.handles, kind="stable")]


def ints(column: bytes) -> Ints:
    """Return a u32 column as int64; raise InvalidRequest if its length is not a multiple of four."""
    return _words(column).astype(np.int64)


def _words(column: bytes) -> npt.NDArray[np.uint32]:
    if len(column) % 4:
        raise InvalidRequest(f"A column of 4-byte numbers cannot have {len(column)} bytes.")
    return np.frombuffer(column, "<u4")


def u32(values: npt.NDArray[Any]) -> bytes:
    """Return `values` as a u32 column."""
    return values.astype("<u4").tobytes()


def _decode_new(message: worker_pb2.NewRequestData, shared: Sequence[_Params]) -> NewRequest:
    params, sampling = _decode_request_params(message, shared)
    pools = message.HasField("pooling_params")
    problem = pooling_problem(message.pooling_params) if pools else None
    return NewRequest(
        handle=message.handle,
        request_id=message.request_id,
        token_ids=ints(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        num_scheduled_tokens=message.num_scheduled_tokens,
        block_ids=_decode_tables(message.block_ids),
        sampling=replace(sampling, seed=_decode_seed(message, params)),
        eos_token_id=message.eos_token_id if message.HasField("eos_token_id") else None,
        context=RequestContext.from_headers(message.trace_headers),
        pooling=decode_pooling(message.pooling_params) if pools and problem is None else None,
        lora_id=message.lora_request.id,
        prompt_embeds=decode_prompt_embeds(message) if message.HasField("prompt_embeds") else None,
        media=decode_spans(message.mm_features),
        refusal=problem or _refusal(message, params, sampling),
    )


def _decode_request_params(message: worker_pb2.NewRequestData, shared: Sequence[_Params]) -> _Params:
    """Return a request's sampling parameters: its own, or those that it shares with other requests."""
    if not message.HasField("sampling_params_index"):
        return _decode_params(message.sampling_params)
    if message.sampling_params_index >= len(shared):
        text = f"A request has parameters number {message.sampling_params_index} of {len(shared)} shared ones."
        raise InvalidRequest(text)
    return shared[message.sampling_params_index]


def _decode_seed(message: worker_pb2.NewRequestData, params: types_pb2.SamplingParams) -> int:
    """Return a request's seed: its own, its parameters', or a hash of its id, so that noise is the same after a preemption."""
    if message.HasField("seed"):
        return message.seed
    return params.seed if params.HasField("seed") else zlib.crc32(message.request_id.encode())


def _decode_params(params: types_pb2.SamplingParams) -> _Params:
    return params, decode_sampling(params)


def decode_sampling(params: types_pb2.SamplingParams) -> SamplingSpec:
    """Return the sampling parameters, with vLLM's defaults for absent fields."""

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
        max_tokens=given("max_tokens", None),
        ignore_eos=params.ignore_eos,
        extra_args=decode_struct(params.extra_args) if params.HasField("extra_args") else None,
        score_ids=_decode_score_ids(params.prompt_score_ids) if params.HasField("prompt_score_ids") else None,
        speech_rules=_decode_speech_rules(params.speech_rules) if params.HasField("speech_rules") else None,
    )


def _decode_speech_rules(message: types_pb2.SpeechRules) -> SpeechRules:
    has_times = message.HasField("first_timestamp_id")
    return SpeechRules(
        tuple(ints(message.suppressed_token_ids).tolist()),
        tuple(ints(message.suppressed_first_token_ids).tolist()),
        TimestampRules(message.first_timestamp_id, message.max_initial_timestamp, message.written_before)
        if has_times
        else None,
    )


def _decode_score_ids(message: types_pb2.PromptScoreIds) -> ScoreIds:
    ids = ints(message.token_ids)
    if not message.width or not len(ids) or len(ids) % message.width:
        raise InvalidRequest(f"prompt_score_ids has {len(ids)} ids, which are no rows of {message.width}.")
    num_positions = message.num_positions if message.HasField("num_positions") else None
    return ScoreIds(np.where(ids == _NO_ID, -1, ids).reshape(-1, message.width), message.start, num_positions)


def _refusal(
    message: worker_pb2.NewRequestData, params: types_pb2.SamplingParams, sampling: SamplingSpec
) -> TetradError | None:
    unread = UNREAD_OF_NEW_REQUEST.error_of(message) or UNREAD_OF_PARAMS.error_of(params)
    if unread is not None:
        return unread
    if sampling.thinking_token_budget is not None and not sampling.thinking_end_ids:
        return InvalidRequest("thinking_token_budget needs thinking_end_token_ids.", field="thinking_token_budget")
    return None


def _decode_cached(message: worker_pb2.CachedRequestData) -> CachedRequests:
    handles = ints(message.handles)
    num_new_blocks = _decode_num_new_blocks(message, len(handles))
    cached = CachedRequests(
        handles=handles,
        num_scheduled_tokens=ints(message.num_scheduled_tokens),
        num_computed_tokens=ints(message.num_computed_tokens),
        num_new_blocks=num_new_blocks,
        new_block_ids=_decode_tables([blocks.block_ids for blocks in message.new_blocks]),
    )
    lengths = {len(handles), len(cached.num_scheduled_tokens), len(cached.num_computed_tokens), len(num_new_blocks)}
    if len(lengths) != 1 or int(num_new_blocks.sum()) != cached.new_block_ids.shape[1]:
        raise InvalidRequest(
            f"Columns of cached_requests disagree: {sorted(lengths)} rows, {cached.new_block_ids.shape[1]} blocks."
        )
    return cached


def _decode_num_new_blocks(message: worker_pb2.CachedRequestData, num_requests: int) -> Ints:
    """Return the number of new blocks of each request in every group; raise InvalidRequest if it differs between groups."""
    columns = {blocks.num_blocks for blocks in message.new_blocks} or {b""}
    if len(columns) > 1:
        raise InvalidRequest("Columns of cached_requests disagree: the block tables of a request grow by different numbers.")
    return ints(columns.pop()) if columns != {b""} else np.zeros(num_requests, np.int64)


def _decode_tables(columns: Sequence[bytes]) -> Ints:
    """Return the block tables of all groups as [G, N], G at least 1; raise InvalidRequest if their lengths differ."""
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise InvalidRequest(f"The block tables of KV groups have different lengths: {sorted(lengths)} bytes.")
    tables = [ints(column) for column in columns or (b"",)]
    return np.concatenate(tables).reshape(len(tables), -1)


def _decode_grammar(message: worker_pb2.GrammarBitmask) -> GrammarRows:
    handles, words = ints(message.handles), _words(message.bitmask)
    if len(words) != len(handles) * message.num_words:
        raise InvalidRequest(f"The bitmask has {len(words)} words for {len(handles)} rows of {message.num_words}.")
    return GrammarRows(handles=handles, bitmask=words.reshape(len(handles), message.num_words))


def _decode_drafts(message: worker_pb2.DraftTokens) -> DraftTokens:
    drafts = DraftTokens(ints(message.handles), ints(message.num_tokens), ints(message.token_ids))
    if len(drafts.handles) != len(drafts.num_tokens) or int(drafts.num_tokens.sum()) != len(drafts.token_ids):
        raise InvalidRequest(
            f"Columns of draft_tokens disagree: {len(drafts.handles)} requests, {len(drafts.num_tokens)} numbers of drafts, "
            f"{len(drafts.token_ids)} drafts."
        )
    return drafts


def _encode_logprobs(rows: LogprobRows) -> types_pb2.LogprobsColumns:
    return types_pb2.LogprobsColumns(
        token_ids=u32(rows.token_ids),
        logprobs=rows.logprobs.astype("<f4").tobytes(),
        ranks=u32(rows.ranks),
        num_positions=rows.token_ids.shape[0],
        width=rows.token_ids.shape[1],
    )


def _encode_scores(item: PromptScores) -> types_pb2.PromptScores:
    num_rows, width = item.scores.shape
    return types_pb2.PromptScores(scores=item.scores.astype("<f4").tobytes(), num_rows=num_rows, width=width)


def _encode_prompt_logprobs(item: PromptLogprobs) -> worker_pb2.PromptLogprobs:
    return worker_pb2.PromptLogprobs(handle=item.handle, start=item.start, columns=_encode_logprobs(item.rows))
