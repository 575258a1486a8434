"""The admin service of a fake engine core."""

import asyncio
import json

from grpc_status import rpc_status

from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.status import to_status
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc, types_pb2


class FakeEngineAdmin(engine_core_pb2_grpc.EngineCoreAdminServiceServicer):
    """Takes notes; a cache cannot be reset while the engine has requests."""

    def __init__(self, engine):
        self.engine = engine

    async def StartProfile(self, request, context):
        self.engine.orders.append(("start_profile",))
        if self.engine.profile_refusal is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(self.engine.profile_refusal)))
        return engine_core_pb2.EngineCoreAdminServiceStartProfileResponse()

    async def StopProfile(self, request, context):
        self.engine.orders.append(("stop_profile",))
        return engine_core_pb2.EngineCoreAdminServiceStopProfileResponse(paths=["/far/away/profile-worker-1.json"])

    async def Pause(self, request, context):
        self.engine.orders.append(("pause", request.mode, request.clear_cache))
        return engine_core_pb2.PauseResponse()

    async def Resume(self, request, context):
        self.engine.orders.append(("resume",))
        return engine_core_pb2.ResumeResponse()

    async def Sleep(self, request, context):
        self.engine.orders.append(("sleep", request.level, request.mode))
        return engine_core_pb2.EngineCoreAdminServiceSleepResponse()

    async def WakeUp(self, request, context):
        self.engine.orders.append(("wake_up", *request.tags))
        return engine_core_pb2.EngineCoreAdminServiceWakeUpResponse()

    async def ResetPrefixCache(self, request, context):
        self.engine.orders.append(("reset", request.reset_running_requests))
        if self.engine.running and not request.reset_running_requests:
            status = to_status(FailedPrecondition("KV blocks are in use"))
            await context.abort_with_status(rpc_status.to_status(status))
        return engine_core_pb2.ResetPrefixCacheResponse(success=True)

    async def ResetEncoderCache(self, request, context):
        self.engine.orders.append(("reset_encoder_cache",))
        return engine_core_pb2.ResetEncoderCacheResponse()

    async def GetInfo(self, request, context):
        await self._refuse(context, "GetInfo")
        return engine_core_pb2.EngineCoreAdminServiceGetInfoResponse(info=self.engine._info())

    async def InitWeightTransfer(self, request, context):
        self.engine.orders.append(("init_weights", request.init_info_json))
        return engine_core_pb2.InitWeightTransferResponse()

    async def StartWeightUpdate(self, request, context):
        await self._refuse(context, "StartWeightUpdate")
        self.engine.orders.append(("start_weights",))
        self.engine.checked_weights_path = ""
        return engine_core_pb2.StartWeightUpdateResponse()

    async def UpdateWeights(self, request, context):
        self.engine.orders.append(("check_weights", request.update_info_json))
        await self._refuse(context, "UpdateWeights")
        self.engine.checked_weights_path = json.loads(request.update_info_json)["path"]
        return engine_core_pb2.UpdateWeightsResponse()

    async def FinishWeightUpdate(self, request, context):
        self.engine.orders.append(("finish_weights", request.weight_version, request.mode))
        await self._refuse(context, "FinishWeightUpdate")
        self.engine.checked_weights_path = ""
        return engine_core_pb2.FinishWeightUpdateResponse(weight_version=request.weight_version)

    async def UpdateWeightVersion(self, request, context):
        self.engine.orders.append(("name_weights", request.weight_version))
        return engine_core_pb2.UpdateWeightVersionResponse()

    async def _refuse(self, context, method):
        """Fail with the next error that a test has given for the method."""
        if errors := self.engine.refusals.get(method):
            await context.abort_with_status(rpc_status.to_status(to_status(errors.pop(0))))

    async def LoadLora(self, request, context):
        self.engine.orders.append(("load_lora", request.lora.name, request.lora.id, request.lora.path))
        return engine_core_pb2.EngineCoreAdminServiceLoadLoraResponse()

    async def UnloadLora(self, request, context):
        self.engine.orders.append(("unload_lora", request.id))
        return engine_core_pb2.EngineCoreAdminServiceUnloadLoraResponse()

    async def ListLoras(self, request, context):
        """Two in a message."""
        later = [number for number in self.engine.lora_ids if number > request.after_id]
        loras = [types_pb2.LoraRequest(name=f"a{number}", id=number, path="/a") for number in later[:2]]
        return engine_core_pb2.ListLorasResponse(loras=loras, has_more=len(later) > 2)

    async def SubscribeKvEvents(self, request, context):
        self.engine.kv_starts.append(request.start_sequence_number)
        while (batch := await self.engine.kv_batches.get()) is not None:
            yield batch

    async def GetLoad(self, request, context):
        if self.engine.is_silent:
            await asyncio.get_running_loop().create_future()
        pauses = [order[0] for order in self.engine.orders if order[0] in ("pause", "resume")]
        sleeps = [order for order in self.engine.orders if order[0] in ("sleep", "wake_up")]
        sleeping = bool(sleeps) and sleeps[-1] not in (("wake_up",), ("wake_up", "kv_cache"))
        load = engine_core_pb2.EngineLoad(paused=pauses[-1:] == ["pause"], sleeping=sleeping, **self.engine.load_fields)
        return engine_core_pb2.GetLoadResponse(load=load)
