"""Health: encodes the readiness of the services, and the outcome of a probe, as a HealthResponse."""

from contextlib import aclosing

import grpc

from tetrad.frontend.api.gateways.common.calls import GatewayRequest, raise_failure
from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.readiness import Report
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.openengine_api import control_pb2
from tetrad.services.errors import TetradError
from tetrad.services.request_context import new_request_id

_READY, _NOT_READY = control_pb2.HEALTH_STATE_READY, control_pb2.HEALTH_STATE_NOT_READY
_ROLES = (control_pb2.ENGINE_ROLE_UNSPECIFIED, control_pb2.ENGINE_ROLE_AGGREGATED)


def health_of(report: Report) -> control_pb2.HealthResponse:
    """Return the state of the server, with one check of the server and one of each service behind it."""
    state = _state_of(report)
    checks = [control_pb2.HealthCheck(name="server", state=state, message=report.problem)]
    checks += [_check(each.name, each.problem) for each in report.dependencies]
    return control_pb2.HealthResponse(state=state, checks=checks)


def role_check(role: int) -> control_pb2.HealthCheck:
    """Return the check whether the server has the role that a client expects."""
    return _check("role", "" if role in _ROLES else "This engine computes prompts and generates.")


async def probe_check(llm: AsyncLLM, requests: OpenRequests, context: grpc.aio.ServicerContext) -> control_pb2.HealthCheck:
    """Check a model by a request for one token, which is admitted and limited like all others; return the check."""
    prompt = TokensPrompt(prompt_token_ids=[llm.tokenizer_info.bos_token_id or 0])
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
    probe = GatewayRequest(new_request_id(), prompt, params)
    reason = None
    try:
        requests.admit(context)
        async with aclosing(requests.run(probe, lambda output: (output,), llm, raise_failure)) as outputs:
            async for output in outputs:
                reason = output.outputs[0].finish_reason
    except TetradError as error:
        return probe_outcome(error.message)
    return probe_outcome("The probe was aborted." if reason == "abort" else "")


def probe_outcome(problem: str) -> control_pb2.HealthCheck:
    """Return the check for a probe with this problem; empty: the probe succeeded."""
    return _check("inference_probe", problem)


def add_check(response: control_pb2.HealthResponse, check: control_pb2.HealthCheck) -> None:
    """Add a check; a failed check changes the state of a ready or degraded server to NOT_READY."""
    response.checks.append(check)
    if check.state == _NOT_READY and response.state in (_READY, control_pb2.HEALTH_STATE_DEGRADED):
        response.state = _NOT_READY


def _state_of(report: Report) -> control_pb2.HealthState:
    if report.draining:
        return control_pb2.HEALTH_STATE_DRAINING
    if not report.started:
        return control_pb2.HEALTH_STATE_STARTING
    if not report.ready:
        return _NOT_READY
    is_degraded = any(each.problem for each in report.dependencies)
    return control_pb2.HEALTH_STATE_DEGRADED if is_degraded else _READY


def _check(name: str, problem: str) -> control_pb2.HealthCheck:
    return control_pb2.HealthCheck(name=name, state=_NOT_READY if problem else _READY, message=problem)
