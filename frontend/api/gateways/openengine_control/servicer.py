"""openengine.v1.Control over the models of a frontend: discovery and load for gateways; adapters and caches for operators.

Methods whose messages name no model use the first one.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.common.kv_streams import kv_events
from tetrad.frontend.api.gateways.common.operators import check_operator
from tetrad.frontend.api.gateways.openengine_control.adapters import LoraAdapters
from tetrad.frontend.api.gateways.openengine_control.facts import load_info, model_info, server_info
from tetrad.frontend.api.gateways.openengine_control.health import add_check, health_of, probe_check, probe_outcome, role_check
from tetrad.frontend.api.gateways.openengine_control.kv_events import KvBatches
from tetrad.frontend.api.gateways.openengine_inference.errors import engine_error
from tetrad.frontend.api.gateways.openengine_inference.models import model_of
from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.openengine_api import control_pb2, control_pb2_grpc, kv_events_pb2
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, TetradError


class ControlServicer(control_pb2_grpc.ControlServicer):
    """Serves the methods of control.proto that Tetrad supports; OpenEngine's other methods are UNIMPLEMENTED.

    Args:
        models: the served models.
        requests: the open requests of Inference, for Abort.
        guard: checks operators.
    """

    def __init__(self, models: ModelDirectory, requests: OpenRequests, guard: Guard) -> None:
        self._models = models
        self._requests = requests
        self._guard = guard
        self._adapters = LoraAdapters(models)

    async def GetServerInfo(
        self, request: control_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ServerInfo:
        """Return the facts of the server."""
        return server_info(self._models)

    async def GetModelInfo(
        self, request: control_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ModelInfo:
        """Return the facts of the named model."""
        if not request.model:
            raise InvalidRequest("model must not be empty; GetServerInfo lists the models.", field="model")
        return model_info(model_of(self._models, request.model))

    async def GetLoad(self, request: control_pb2.GetLoadRequest, context: grpc.aio.ServicerContext) -> control_pb2.LoadInfo:
        """Return the load of the engine cores that answer in time."""
        llm = self._models.first
        llm.engine_admin.check_targets()
        ranks = llm.engine_ranks
        loads = await llm.engine_admin.loads_known()
        return load_info(llm.engine_info, ranks, loads, include_per_rank=request.include_per_rank)

    async def Health(self, request: control_pb2.HealthRequest, context: grpc.aio.ServicerContext) -> control_pb2.HealthResponse:
        """Return whether requests can be served now, and why not."""
        report = self._models.readiness.report()
        response = health_of(report)
        if request.role:
            add_check(response, role_check(request.role))
        if request.include_inference_probe:
            probe = await self._probe(request.model, context) if report.started else probe_outcome(report.problem)
            add_check(response, probe)
        return response

    async def Abort(self, request: control_pb2.AbortRequest, context: grpc.aio.ServicerContext) -> control_pb2.AbortResponse:
        """Abort a request and end its stream; only operators may abort all requests."""
        match request.WhichOneof("target"):
            case "request_id":
                was_open = self._requests.abort(request.request_id)
            case "all_requests":
                check_operator(self._guard, context)
                was_open = self._requests.abort_all()
            case "kv_session":
                raise NotFound("There are no KV sessions.", field="kv_session", reason="KV_SESSION_NOT_FOUND")
            case _:
                raise InvalidRequest("Abort needs `request_id` or `all_requests`.", field="target")
        status = control_pb2.ABORT_STATUS_ABORTED if was_open else control_pb2.ABORT_STATUS_ALREADY_FINISHED
        return control_pb2.AbortResponse(status=status)

    async def LoadLora(
        self, request: control_pb2.LoadLoraRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.LoadLoraResponse:
        """Load an adapter, which requests can then name; for operators."""
        check_operator(self._guard, context)
        already_loaded = await self._adapters.load(request.adapter)
        return control_pb2.LoadLoraResponse(adapter=request.adapter, already_loaded=already_loaded)

    async def UnloadLora(
        self, request: control_pb2.UnloadLoraRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.UnloadLoraResponse:
        """Unload an adapter and free its memory; for operators."""
        check_operator(self._guard, context)
        return control_pb2.UnloadLoraResponse(adapter=await self._adapters.unload(request.lora_name))

    async def ListLoras(
        self, request: control_pb2.ListLorasRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ListLorasResponse:
        """Return the adapters that requests can name."""
        return control_pb2.ListLorasResponse(adapters=self._adapters)

    async def SubscribeKvEvents(
        self, request: kv_events_pb2.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[kv_events_pb2.SubscribeKvEventsResponse]:
        """Stream the changes of the prefix caches, whose blocks contain the tokens of all users' prompts; for operators."""
        check_operator(self._guard, context)
        start = 0 if request.include_snapshot else request.start_sequence_number
        llm = self._models.first
        wanted, known = sorted(set(request.data_parallel_ranks)), sorted(llm.engine_ranks)
        unknown = next((rank for rank in wanted if rank not in known), None)
        if unknown is not None:
            raise InvalidRequest(f"data_parallel_ranks must be of {known}, got {unknown}.", field="data_parallel_ranks")
        skips_snapshot = not request.include_snapshot and not start
        batches = {rank: KvBatches(rank, skips_snapshot=skips_snapshot) for rank in known}
        try:
            async with aclosing(kv_events(llm, start, ranks=wanted)) as events:
                async for rank, notice in events:
                    batch = batches[rank].of(notice)
                    if batch is not None:
                        yield kv_events_pb2.SubscribeKvEventsResponse(batch=batch)
        except TetradError as error:
            yield kv_events_pb2.SubscribeKvEventsResponse(error=engine_error(error))

    async def _probe(self, model: str, context: grpc.aio.ServicerContext) -> control_pb2.HealthCheck:
        llm = model_of(self._models, model)
        if not llm.generates:
            raise FailedPrecondition("include_inference_probe needs a model that generates.", field="include_inference_probe")
        return await probe_check(llm, self._requests, context)
