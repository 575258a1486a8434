"""vllm.Control over AsyncLLM: discovery for gateways, pausing for operators."""

from typing import NoReturn

import grpc

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.common.calls import GatewayCalls
from tetrad.frontend.api.gateways.common.operators import check_operator
from tetrad.frontend.engine.admin_client import PauseMode
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import InvalidRequest
from tetrad.services.version import VERSION
from tetrad.vllm_api import control_pb2, control_pb2_grpc

_API_VERSION = "vllm"
_MODES: dict[int, PauseMode] = {
    control_pb2.PAUSE_MODE_UNSPECIFIED: "abort",
    control_pb2.PAUSE_MODE_ABORT: "abort",
    control_pb2.PAUSE_MODE_WAIT: "wait",
    control_pb2.PAUSE_MODE_KEEP: "keep",
}


class ControlServicer(control_pb2_grpc.ControlServicer):
    """The methods of control.proto; vLLM's other methods are UNIMPLEMENTED.

    Args:
        llm: the served model.
        calls: the calls of vllm.Inference, whose requests Abort ends.
        guard: checks operators.
    """

    def __init__(self, llm: AsyncLLM, calls: GatewayCalls, guard: Guard) -> None:
        self._llm = llm
        self._calls = calls
        self._guard = guard

    async def GetServerInfo(
        self, request: control_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ServerInfo:
        """Return the facts of the server."""
        engine, num_engines = self._llm.engine_info, self._llm.num_engines
        return control_pb2.ServerInfo(
            engine_version=VERSION,
            api_version=_API_VERSION,
            instance_id=f"{engine.epoch:x}",
            parallelism=control_pb2.ParallelismInfo(
                tensor_parallel_size=engine.tensor_parallel_size,
                pipeline_parallel_size=engine.pipeline_parallel_size,
                data_parallel_size=num_engines,
            ),
            max_model_len=self._llm.max_model_len,
            kv_block_size=engine.block_size,
            total_kv_blocks=engine.num_gpu_blocks * num_engines,
            max_running_requests=engine.max_num_seqs,
            max_batched_tokens=engine.max_num_batched_tokens,
        )

    async def GetModelInfo(
        self, request: control_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ModelInfo:
        """Return the facts of the served model."""
        names = self._llm.model_names
        return control_pb2.ModelInfo(
            model_id=names.root,
            served_model_name=names.names[0],
            served_model_aliases=names.names[1:],
            supports_text_input=True,
            supports_token_ids_input=True,
            supports_lora=self._llm.engine_info.supports_lora,
        )

    async def Abort(self, request: control_pb2.AbortRequest, context: grpc.aio.ServicerContext) -> control_pb2.AbortResponse:
        """Abort requests and end their streams."""
        self._calls.abort(request.request_ids)
        return control_pb2.AbortResponse()

    async def PauseGeneration(
        self, request: control_pb2.PauseGenerationRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.PauseGenerationResponse:
        """Pause generation; later requests wait."""
        check_operator(self._guard, context)
        clear_cache = request.clear_cache if request.HasField("clear_cache") else True
        mode = _MODES.get(request.mode) or _refuse_mode(request.mode)
        await self._llm.engine_admin.pause(mode, clear_cache=clear_cache)
        return control_pb2.PauseGenerationResponse()

    async def ResumeGeneration(
        self, request: control_pb2.ResumeGenerationRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ResumeGenerationResponse:
        """Resume generation."""
        check_operator(self._guard, context)
        await self._llm.engine_admin.resume()
        return control_pb2.ResumeGenerationResponse()

    async def IsPaused(
        self, request: control_pb2.IsPausedRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.IsPausedResponse:
        """Return whether generation is paused at any engine core that answers in time."""
        return control_pb2.IsPausedResponse(paused=(await self._llm.engine_admin.state()).is_paused)


def _refuse_mode(mode: int) -> NoReturn:
    raise InvalidRequest(f"mode must be one of {sorted(_MODES)}, got {mode}.", field="mode")
