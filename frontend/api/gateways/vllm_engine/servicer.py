"""VllmEngine over AsyncLLM: prompts and answers are token ids; the gateway tokenizes and detokenizes.

Errors are raised unchanged; the server's interceptor maps them to a status, which gateways map to HTTP's.
"""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.common.calls import GatewayCalls
from tetrad.frontend.api.gateways.common.kv_streams import merged
from tetrad.frontend.api.gateways.common.operators import check_operator
from tetrad.frontend.api.gateways.common.refusals import refuse
from tetrad.frontend.api.gateways.vllm_engine.answers import EngineAnswers
from tetrad.frontend.api.gateways.vllm_engine.facts import loads, model_info, server_info
from tetrad.frontend.api.gateways.vllm_engine.kv_events import KvEventBatches
from tetrad.frontend.api.gateways.vllm_engine.requests import request_of
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.api.grpc.traced_calls import traced_call
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.pooling import EMBED, PoolingParams
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.services.errors import Unsupported


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc] # the package ships no types
    """Every method.

    Args:
        llm: what generates, or pools.
        limits: of time, for clients.
        guard: checks operators, who alone may read and reset caches, and record profiles.
    """

    def __init__(self, llm: AsyncLLM, limits: CallLimits, guard: Guard) -> None:
        self._llm = llm
        self._guard = guard
        self._calls = GatewayCalls(llm, limits)
        self._started_s = time.monotonic()

    async def Generate(
        self, request: vllm_engine_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]:
        """Stream the deltas of a completion, or its end alone."""
        self._calls.admit(context)
        wanted = request_of(request, self._llm.default_sampling_fields())
        answers = EngineAnswers(wanted.params)
        async with aclosing(self._calls.run(wanted, answers.of)) as messages:
            async for message in messages:
                yield message

    async def Embed(
        self, request: vllm_engine_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.EmbedResponse:
        """Return the embedding of one prompt of ids."""
        self._calls.admit(context)
        self._llm.required_pooling(EMBED, "Embed", Unsupported)
        with traced_call(self._llm, request.request_id) as request_id:
            prompt = TokensPrompt(prompt_token_ids=list(request.tokenized.input_ids))
            output = await self._llm.encode(prompt, PoolingParams(task=EMBED), request_id)
        values = output.outputs.values
        return vllm_engine_pb2.EmbedResponse(
            embedding=values, embedding_dim=len(values), prompt_tokens=len(output.prompt_token_ids)
        )

    async def Abort(
        self, request: vllm_engine_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.AbortResponse:
        """End requests, and their streams."""
        self._calls.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.HealthCheckResponse:
        """Return whether requests can be served now, and why not."""
        report = self._llm.readiness.report()
        return vllm_engine_pb2.HealthCheckResponse(healthy=report.ready, message=report.problem or "OK")

    async def GetModelInfo(
        self, request: vllm_engine_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        """Return the facts of the served model."""
        return model_info(self._llm)

    async def GetServerInfo(
        self, request: vllm_engine_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        """Return the facts of the server."""
        return server_info(self._llm, is_paused=await self._is_paused(), uptime_s=time.monotonic() - self._started_s)

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetLoadsResponse:
        """Return the load of each engine core that answers at once, or of the requested one."""
        self._llm.engine_admin.check_targets()
        answer = loads(self._llm.engine_info, await self._llm.engine_admin.loads_known())
        if request.HasField("dp_rank"):
            wanted = [load for load in answer.loads if load.dp_rank == request.dp_rank]
            del answer.loads[:]
            answer.loads.extend(wanted)
        return answer

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """Stream the tokenizer's files as a zip archive."""
        async with aclosing(self._llm.backends.tokenizer_bundle()) as chunks:
            async for chunk in chunks:
                yield common_pb2.GetTokenizerChunk(data=chunk.data, sha256=chunk.sha256)

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        """Stream what the prefix caches of the engine cores hold, and what changes in them; for operators.

        Blocks contain the tokens of all users' prompts.
        """
        check_operator(self._guard, context)
        batches = KvEventBatches(request.start_sequence_number)
        async with aclosing(merged(self._llm.engine_admin.kv_events())) as events:
            async for rank, told in events:
                yield batches.of(rank, told)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.FlushCacheResponse:
        """Forget all cached prefixes, at once or not at all; for operators."""
        check_operator(self._guard, context)
        if await self._llm.engine_admin.reset_prefix_cache():
            return common_pb2.FlushCacheResponse(success=True, message="All cached prefixes are forgotten.")
        return common_pb2.FlushCacheResponse(success=False, message="Requests hold blocks; nothing was forgotten.")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """Record the engine cores and their workers; for operators."""
        check_operator(self._guard, context)
        options = [field.name for field, _ in request.ListFields()]
        refuse(options, options, "what is recorded, and where to, is a setting of each service")
        await self._llm.engine_admin.start_profile()
        return common_pb2.ProfileResponse(success=True, message="Recording.")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """End the recording and name its files, one for each service, where it runs; for operators."""
        check_operator(self._guard, context)
        paths = await self._llm.engine_admin.stop_profile()
        return common_pb2.ProfileResponse(success=True, message=", ".join(paths))

    async def _is_paused(self) -> bool:
        known = await self._llm.engine_admin.loads_known()
        return any(load is not None and load.paused for load in known)
