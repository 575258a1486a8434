"""Weights wire: decodes the commands of an update of the weights, and encodes which weights serve."""

from tetrad.engine_core_svc.engine.weight_updates import WeightUpdates
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.models.model_directory import parse_json_object
from tetrad.v1 import engine_core_pb2 as pb

_BACKEND = "disk"


def check_backend(init_info_json: str) -> None:
    """Raise Unsupported for another backend than "disk", InvalidRequest for anything but a JSON object."""
    values = parse_json_object(init_info_json or "{}", "init_info")
    backend = values.pop("backend", _BACKEND)
    if backend != _BACKEND:
        raise Unsupported(f"init_info.backend {str(backend)[:80]!r}: weights are read from a directory; use {_BACKEND!r}.")
    if values:
        raise InvalidRequest(f"init_info.{min(values)[:80]}: the backend {_BACKEND!r} takes no options.", field="init_info")


def decode_update_path(update_info_json: str) -> str:
    """Return the path of an update's weights. Raises InvalidRequest for anything but an object with a path."""
    values = parse_json_object(update_info_json, "update_info")
    path = values.pop("path", None)
    if not isinstance(path, str) or not path:
        raise InvalidRequest("update_info.path must be the path of a directory or .gguf file.", field="update_info")
    if values:
        text = f"update_info.{min(values)[:80]} is not supported: the weights are read from update_info.path alone."
        raise InvalidRequest(text, field="update_info")
    return path


def with_weights(info: pb.EngineInfo, updates: WeightUpdates) -> pb.EngineInfo:
    """Return the facts of an engine core with its present weights, and those that the next update would apply."""
    present = updates.present
    described = pb.EngineInfo(
        weight_version=present.version, weights_path=present.path, checked_weights_path=updates.checked_path
    )
    described.MergeFrom(info)
    return described
