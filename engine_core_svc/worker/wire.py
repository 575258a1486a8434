"""Wire of the worker: encodes plans, and decodes their results.

Frequent messages are columns (services/rpc/columns.py): one step of 256 requests takes well under a millisecond.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tetrad.engine_core_svc.core.media_wire import encode_span
from tetrad.engine_core_svc.core.payload import EncodedParams
from tetrad.engine_core_svc.core.plan import (
    Logprobs,
    ModelRunnerOutput,
    NewRequestData,
    PoolingOutput,
    PromptScores,
    SchedulerOutput,
)
from tetrad.engine_core_svc.core.wire import PoolingMessage, encode_orders, sampling_of
from tetrad.engine_core_svc.worker.lora_wire import encode_adapter
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.v1 import types_pb2, worker_pb2

_ONE = pack_u32([1])
"""The column of the token counts of one request with one token."""


def encode_plan(
    plan: SchedulerOutput, *, shares_params: bool = True, cancels_transfers: bool = True
) -> worker_pb2.ExecuteRequest:
    """Return a plan as a message.

    Args:
        plan: the plan.
        shares_params: whether the worker reads parameters that several requests share, and separate seeds.
        cancels_transfers: whether the worker can give transfers up.
    """
    columns = plan.cached_requests
    shared = _shared_params(plan.new_requests) if shares_params and plan.new_requests else {}
    step = worker_pb2.SchedulerOutput(
        step_id=plan.step_id,
        freed_encoder_hashes=plan.freed_encoder_hashes,
        new_requests=[_encode_new_request(new, shared, has_seed=shares_params) for new in plan.new_requests],
        shared_sampling_params=[sampling_of(params) for params in shared],
        removed_handles=pack_u32(plan.removed_keys),
        total_num_scheduled_tokens=plan.total_num_scheduled_tokens,
        num_spec_tokens=plan.num_spec_tokens,
    )
    if columns.keys:
        step.cached_requests.handles = pack_u32(columns.keys)
        step.cached_requests.num_scheduled_tokens = pack_u32(columns.num_scheduled_tokens)
        step.cached_requests.num_computed_tokens = pack_u32(columns.num_computed_tokens)
        for blocks in zip(*columns.new_blocks, strict=True):  # the blocks of one KV group, row by row
            ids = pack_u32(chain.from_iterable(blocks))
            step.cached_requests.new_blocks.add(num_blocks=pack_u32(map(len, blocks)), block_ids=ids)
    masks = plan.grammar_masks
    if masks is not None:
        step.grammar_bitmask.handles = pack_u32(masks.keys)
        step.grammar_bitmask.bitmask = masks.masks
        step.grammar_bitmask.num_words = masks.num_words
    _add_drafts(step, plan.draft_tokens)
    if plan.transfers is not None:
        step.kv_transfers.CopyFrom(encode_orders(plan.transfers, with_cancelled=cancels_transfers))
    _add_copies(step.swap_out, plan.swaps.out)
    _add_copies(step.swap_in, plan.swaps.back)
    return worker_pb2.ExecuteRequest(step=step)


def _add_drafts(step: worker_pb2.SchedulerOutput, draft_tokens: Mapping[int, Sequence[int]]) -> None:
    if draft_tokens:
        step.draft_tokens.handles = pack_u32(draft_tokens)
        step.draft_tokens.num_tokens = pack_u32(map(len, draft_tokens.values()))
        step.draft_tokens.token_ids = pack_u32(chain.from_iterable(draft_tokens.values()))


def _add_copies(message: worker_pb2.BlockCopies, copies: Sequence[tuple[int, int]]) -> None:
    if copies:
        message.source_block_ids = pack_u32([source for source, _ in copies])
        message.target_block_ids = pack_u32([target for _, target in copies])


def _shared_params(requests: Sequence[NewRequestData]) -> dict[EncodedParams, int]:
    """Return the parameters that several requests have, with their indices in the message."""
    counts = Counter(new.payload.params for new in requests if not new.pools)
    shared = [params for params, count in counts.items() if count > 1]
    return {params: index for index, params in enumerate(shared)}


def _encode_new_request(new: NewRequestData, shared: dict[EncodedParams, int], *, has_seed: bool) -> worker_pb2.NewRequestData:
    payload = new.payload
    index, params = shared.get(payload.params), payload.params
    message = worker_pb2.NewRequestData(
        handle=new.key,
        token_ids=pack_u32(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        num_scheduled_tokens=new.num_scheduled_tokens,
        block_ids=[pack_u32(table) for table in new.block_tables],
        sampling_params=sampling_of(params) if index is None and not new.pools else None,
        pooling_params=params.message if isinstance(params, PoolingMessage) else None,
        sampling_params_index=index,
        seed=payload.seed if has_seed else None,
        request_id=new.request_id,
        eos_token_id=payload.eos_token_id,
        trace_headers=payload.context.headers(),
    )
    if new.adapter is not None:
        message.lora_request.CopyFrom(encode_adapter(new.adapter))
    embeds = payload.prompt_embeds
    if embeds is not None:
        message.prompt_embeds.dtype = types_pb2.DATA_TYPE_FLOAT32
        message.prompt_embeds.shape.extend((embeds.num_rows, embeds.hidden_size))
        message.prompt_embeds.inline = embeds.content
        message.prompt_is_token_ids = embeds.is_token_ids
    message.mm_features.extend(map(encode_span, payload.media))
    if payload.seed is not None and not has_seed:
        message.sampling_params.seed = payload.seed
    return message


def decode_result(message: worker_pb2.ModelRunnerOutput) -> ModelRunnerOutput:
    """Return a step's result. Raises InvalidRequest if its columns disagree."""
    keys, rows = _decode_rows(message)
    pooled = {each.handle: _decode_pooled(each.output) for each in message.pooling_outputs}
    return ModelRunnerOutput(
        step_id=message.step_id,
        keys=[*keys, *pooled],
        token_ids=[*rows, *[()] * len(pooled)],
        logprobs={key: rows for group in message.logprobs_by_width for key, rows in _logprobs_by_key(group).items()},
        prompt_logprobs={entry.handle: _decode_logprobs(entry.columns) for entry in message.prompt_logprobs},
        prompt_scores={entry.handle: _decode_scores(entry.scores) for entry in message.prompt_scores},
        pooling_outputs=pooled,
        failures={failure.handle: from_status(failure.status) for failure in message.failures},
        draft_tokens=dict(zip(*_decode_rows(message.draft_tokens), strict=True)),
        compute_s=message.compute_seconds,
        draft_s=message.draft_seconds,
    )


def _decode_rows(message: worker_pb2.ModelRunnerOutput | worker_pb2.DraftTokens) -> tuple[list[int], list[Sequence[int]]]:
    """Return the keys of requests, and the tokens of each; if each has one token, counts may be missing."""
    keys, token_ids = unpack_u32(message.handles), unpack_u32(message.token_ids)
    if len(keys) == len(token_ids) and message.num_tokens in (b"", _ONE * len(keys)):
        return keys, list(zip(token_ids, strict=True))
    rows = split_rows(token_ids, unpack_u32(message.num_tokens))
    if len(rows) != len(keys):
        raise InvalidRequest(f"Columns disagree: {len(keys)} requests, but {len(rows)} numbers of tokens.")
    return keys, rows


def _decode_pooled(tensor: types_pb2.Tensor) -> PoolingOutput:
    dtype = types_pb2.DataType.Name(tensor.dtype).removeprefix("DATA_TYPE_").lower()
    return PoolingOutput(dtype, tuple(tensor.shape), tensor.inline)


def _decode_scores(message: types_pb2.PromptScores) -> PromptScores:
    return PromptScores(message.scores, message.num_rows, message.width)


def _decode_logprobs(columns: types_pb2.LogprobsColumns) -> Logprobs:
    return Logprobs(columns.token_ids, columns.logprobs, columns.ranks, columns.num_positions, columns.width)


def _logprobs_by_key(message: worker_pb2.SampleLogprobs) -> dict[int, Logprobs]:
    """Cut columns into one piece per request; positions of one request are consecutive."""
    columns, row_bytes = message.columns, 4 * message.columns.width
    keys = unpack_u32(message.handles)
    if not _decode_logprobs(columns).has_shape(len(keys), columns.width):
        raise InvalidRequest(
            f"Columns disagree: log-probabilities of {len(keys)} positions of {columns.width} candidates have "
            f"{len(columns.token_ids)} bytes of ids, {len(columns.logprobs)} of values and {len(columns.ranks)} of ranks."
        )
    pieces: dict[int, Logprobs] = {}
    for position, key in enumerate(keys):
        row = slice(position * row_bytes, (position + 1) * row_bytes)
        rank = columns.ranks[4 * position : 4 * position + 4]
        piece = Logprobs(columns.token_ids[row], columns.logprobs[row], rank, 1, columns.width)
        earlier = pieces.get(key)
        if earlier is not None:
            piece = replace(
                piece,
                token_ids=earlier.token_ids + piece.token_ids,
                logprobs=earlier.logprobs + piece.logprobs,
                ranks=earlier.ranks + piece.ranks,
                num_positions=earlier.num_positions + 1,
            )
        pieces[key] = piece
    return pieces
