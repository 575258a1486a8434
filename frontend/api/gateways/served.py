"""Served: registers the foreign APIs on a frontend's public port. The only file that knows all foreign APIs.

Each API is imported only if it is served: one of them needs a package that an image may lack.
"""

import importlib.util
from collections.abc import Callable

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.common.calls import GatewayCalls
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import FailedPrecondition
from tetrad.services.log import get_logger
from tetrad.services.rpc.server import Register

log = get_logger()

Services = dict[str, Register]
_MESSAGES = "smg_grpc_proto"


def gateway_services(names: tuple[str, ...], models: ModelDirectory, limits: CallLimits, guard: Guard) -> Services:
    """Return the registrations of these APIs' servicers, by the full names of their services.

    Args:
        names: `smg`, `vllm`, `openengine`; `auto`: all whose packages are installed.
        models: the served models. APIs without model names use the first one.
        limits: the time limits of calls.
        guard: checks operators.

    Raises:
        FailedPrecondition: an API is requested by name, and its package is not installed.
    """
    services: Services = {}
    for name in _APIS if names == ("auto",) else names:
        if name == "smg" and importlib.util.find_spec(_MESSAGES) is None:
            if names != ("auto",):
                raise FailedPrecondition("--gateway-apis smg needs the package smg-grpc-proto: pip install smg-grpc-proto.")
            log.info("gateways.not_served", api=name, missing=_MESSAGES)
            continue
        services |= _APIS[name](models, limits, guard)
    return services


def _vllm_engine(models: ModelDirectory, limits: CallLimits, guard: Guard) -> Services:
    from smg_grpc_proto.generated import vllm_engine_pb2_grpc

    from tetrad.frontend.api.gateways.vllm_engine.servicer import VllmEngineServicer

    engine = VllmEngineServicer(models.first, limits, guard)
    return {
        "vllm.grpc.engine.VllmEngine": lambda server: vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server),
    }


def _vllm_inference(models: ModelDirectory, limits: CallLimits, guard: Guard) -> Services:
    from tetrad.frontend.api.gateways.vllm_control.servicer import ControlServicer
    from tetrad.frontend.api.gateways.vllm_inference.servicer import InferenceServicer
    from tetrad.vllm_api import control_pb2_grpc, inference_pb2_grpc

    calls = GatewayCalls(models.first, limits)
    inference, control = InferenceServicer(models, calls), ControlServicer(models.first, calls, guard)
    return {
        "vllm.Inference": lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(inference, server),
        "vllm.Control": lambda server: control_pb2_grpc.add_ControlServicer_to_server(control, server),
    }


def _openengine(models: ModelDirectory, limits: CallLimits, guard: Guard) -> Services:
    from tetrad.frontend.api.gateways.openengine_control.servicer import ControlServicer
    from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
    from tetrad.frontend.api.gateways.openengine_inference.servicer import InferenceServicer
    from tetrad.openengine_api import control_pb2_grpc, inference_pb2_grpc

    requests = OpenRequests(models.first, limits)
    inference, control = InferenceServicer(models, requests), ControlServicer(models, requests, guard)
    return {
        "openengine.v1.Inference": lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(inference, server),
        "openengine.v1.Control": lambda server: control_pb2_grpc.add_ControlServicer_to_server(control, server),
    }


_APIS: dict[str, Callable[[ModelDirectory, CallLimits, Guard], Services]] = {
    "smg": _vllm_engine,
    "vllm": _vllm_inference,
    "openengine": _openengine,
}
