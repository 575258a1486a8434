"""Pooling wire: converts messages of pooling requests, answers and facts. Called by wire.py and lifecycle.py only."""

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.pooling import TASKS, PoolingFacts, PoolingSpec
from tetrad.worker_svc.core.result import Pooled

UNREAD_OF_POOLING = UnreadFields(types_pb2.PoolingParams, ("extra_args", "late_interaction"), owner="This worker")


def decode_pooling(params: types_pb2.PoolingParams) -> PoolingSpec:
    """Return the parameters of a pooling request; call `pooling_problem` first."""
    return PoolingSpec(
        task=next(task for task in TASKS if task == params.task),
        use_activation=params.use_activation if params.HasField("use_activation") else None,
        dimensions=params.dimensions if params.HasField("dimensions") else None,
        token_type_boundary=params.token_type_boundary if params.HasField("token_type_boundary") else None,
        step_tag_id=params.step_tag_id if params.HasField("step_tag_id") else None,
        returned_token_ids=tuple(params.returned_token_ids),
    )


def pooling_problem(params: types_pb2.PoolingParams) -> TetradError | None:
    """Return the error of a pooling request that no worker can run; None if it can run."""
    if params.task not in TASKS:
        return InvalidRequest(f"Unsupported task: {params.task!r} Supported tasks: {list(TASKS)}.", field="task")
    return UNREAD_OF_POOLING.error_of(params)


def encode_pooled(pooled: Pooled) -> worker_pb2.PoolingOutput:
    """Return the message of one answer."""
    values = pooled.values
    tensor = types_pb2.Tensor(
        dtype=types_pb2.DATA_TYPE_FLOAT32, shape=values.shape, inline=values.astype("<f4", copy=False).tobytes()
    )
    return worker_pb2.PoolingOutput(handle=pooled.handle, output=tensor)


def encode_pooling_facts(facts: PoolingFacts) -> types_pb2.PoolingInfo:
    """Return the message of a model's pooling facts."""
    return types_pb2.PoolingInfo(
        tasks=facts.tasks,
        embedding_size=facts.embedding_size,
        is_matryoshka=facts.matryoshka is not None,
        matryoshka_dimensions=facts.matryoshka or (),
        labels=facts.labels,
        num_labels=len(facts.labels),
        is_causal=facts.is_causal,
        needs_all_tokens=facts.needs_all_tokens,
        generates=facts.generates,
        chunked_processing=facts.chunked_processing,
        max_embed_len=facts.max_embed_len,
    )
