"""Wire of the worker: encodes plans, and decodes their results.

Hot messages are columns (services/columns.py): one step of 256 requests costs well under a millisecond.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tetrad.engine_core_svc.core.payload_wire import WorkerPayload
from tetrad.engine_core_svc.core.plan import Logprobs, ModelRunnerOutput, NewRequestData, SchedulerOutput
from tetrad.services.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.errors import InvalidRequest
from tetrad.services.status import from_status
from tetrad.v1 import types_pb2, worker_pb2


def encode_plan(plan: SchedulerOutput, *, shares_params: bool = True) -> worker_pb2.ExecuteRequest:
    """Return a plan as the worker gets it.

    Args:
        plan: the plan.
        shares_params: whether the worker reads parameters that several requests share, and seeds beside them.
    """
    columns = plan.cached_requests
    shared = _shared_params(plan.new_requests) if shares_params else {}
    step = worker_pb2.SchedulerOutput(
        step_id=plan.step_id,
        new_requests=[_encode_new_request(new, shared, has_seed=shares_params) for new in plan.new_requests],
        shared_sampling_params=[params for _, params in shared.values()],
        removed_handles=pack_u32(plan.removed_keys),
        total_num_scheduled_tokens=plan.total_num_scheduled_tokens,
    )
    if columns.keys:
        step.cached_requests.handles = pack_u32(columns.keys)
        step.cached_requests.num_scheduled_tokens = pack_u32(columns.num_scheduled_tokens)
        step.cached_requests.num_computed_tokens = pack_u32(columns.num_computed_tokens)
        step.cached_requests.new_blocks.add(
            num_blocks=pack_u32(columns.num_new_blocks), block_ids=pack_u32(columns.new_block_ids)
        )
    masks = plan.grammar_masks
    if masks is not None:
        step.grammar_bitmask.handles = pack_u32(masks.keys)
        step.grammar_bitmask.bitmask = masks.masks
        step.grammar_bitmask.num_words = masks.num_words
    _add_copies(step.swap_out, plan.swaps.out)
    _add_copies(step.swap_in, plan.swaps.back)
    return worker_pb2.ExecuteRequest(step=step)


def _add_copies(message: worker_pb2.BlockCopies, copies: Sequence[tuple[int, int]]) -> None:
    if copies:
        message.source_block_ids = pack_u32([source for source, _ in copies])
        message.target_block_ids = pack_u32([target for _, target in copies])


def _shared_params(requests: Sequence[NewRequestData]) -> dict[int, tuple[int, types_pb2.SamplingParams]]:
    """Return the parameters that several requests have, by their identity, with their places in the message."""
    counts = Counter(id(new.payload.sampling_params) for new in requests)
    params = {id(new.payload.sampling_params): new.payload.sampling_params for new in requests}
    shared = [identity for identity, count in counts.items() if count > 1]
    return {identity: (index, params[identity]) for index, identity in enumerate(shared)}


def _encode_new_request(
    new: NewRequestData, shared: dict[int, tuple[int, types_pb2.SamplingParams]], *, has_seed: bool
) -> worker_pb2.NewRequestData:
    payload: WorkerPayload = new.payload
    index, _ = shared.get(id(payload.sampling_params), (None, None))
    message = worker_pb2.NewRequestData(
        handle=new.key,
        token_ids=pack_u32(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        num_scheduled_tokens=new.num_scheduled_tokens,
        block_ids=[pack_u32(new.block_ids)],
        sampling_params=payload.sampling_params if index is None else None,
        sampling_params_index=index,
        seed=payload.seed if has_seed else None,
        request_id=new.request_id,
        eos_token_id=payload.eos_token_id,
        trace_headers=payload.context.headers(),
    )
    if payload.seed is not None and not has_seed:
        message.sampling_params.seed = payload.seed
    return message


def decode_result(message: worker_pb2.ModelRunnerOutput) -> ModelRunnerOutput:
    """Return a step's result as own value; InvalidRequest if its columns disagree."""
    keys = unpack_u32(message.handles)
    token_ids = unpack_u32(message.token_ids)
    if len(keys) == len(token_ids):  # no speculation: one token each
        rows: list[Sequence[int]] = [(token_id,) for token_id in token_ids]
    else:
        rows = split_rows(token_ids, unpack_u32(message.num_tokens))
        if len(rows) != len(keys):
            raise InvalidRequest(f"Columns disagree: {len(keys)} requests, but {len(rows)} numbers of tokens.")
    return ModelRunnerOutput(
        step_id=message.step_id,
        keys=keys,
        token_ids=rows,
        logprobs={key: rows for group in message.logprobs_by_width for key, rows in _logprobs_by_key(group).items()},
        prompt_logprobs={entry.handle: _decode_logprobs(entry.columns) for entry in message.prompt_logprobs},
        failures={failure.handle: from_status(failure.status) for failure in message.failures},
        compute_s=message.compute_seconds,
    )


def _decode_logprobs(columns: types_pb2.LogprobsColumns) -> Logprobs:
    return Logprobs(columns.token_ids, columns.logprobs, columns.ranks, columns.num_positions, columns.width)


def _logprobs_by_key(message: worker_pb2.SampleLogprobs) -> dict[int, Logprobs]:
    """Cut columns into one piece per request; positions of one request stand together."""
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
