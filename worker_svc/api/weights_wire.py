"""Weights wire: updates of weights in messages, from the engine core and to it."""

from tetrad.services.errors import InvalidRequest
from tetrad.services.models.model_directory import parse_json_object
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.core.device import NewWeights
from tetrad.worker_svc.worker.snapshot import Snapshot


def decode_weights(request: worker_pb2.LoadModelRequest) -> NewWeights | None:
    """Return the weights that a request names in place of the model's own; None: it names none."""
    source = request.weights
    return NewWeights(source.path, source.update_id, source.files_digest) if source.path else None


def encode_weights(seen: Snapshot) -> worker_pb2.WeightSource | None:
    """Return the last finished update of a worker; None: it has the model's own weights, without a name."""
    if seen.weights is None and not seen.weight_version:
        return None
    weights = seen.weights or NewWeights("", "")
    return worker_pb2.WeightSource(
        path=weights.path,
        update_id=weights.update_id,
        files_digest=weights.files_digest,
        version=seen.weight_version,
    )


def decode_update_path(update_info_json: str) -> str:
    """Return the path in an update's JSON object. Raises InvalidRequest for anything else."""
    values = parse_json_object(update_info_json, "update_info")
    path = values.get("path")
    if not isinstance(path, str) or not path or values.keys() != {"path"}:
        text = f"update_info must be an object with a path alone, got {update_info_json[:200]}."
        raise InvalidRequest(text, field="update_info")
    return path
