"""VllmEngine over AsyncLLM: prompts and answers are token ids, because the gateway tokenizes and detokenizes.

Errors are raised unchanged; the server's interceptor maps them to a gRPC status, and gateways map this to an HTTP status.
"""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.common.calls import GatewayCalls
from tetrad.frontend.api.gateways.common.kv_streams import kv_events
from tetrad.frontend.api.gateways.common.operators import check_operator
from tetrad.frontend.api.gateways.common.refusals import refuse
from tetrad.frontend.api.gateways.vllm_engine.answers import EngineAnswers
from tetrad.frontend.api.gateways.vllm_engine.facts import loads, model_info, server_info
from tetrad.frontend.api.gateways.vllm_engine.kv_events import KvEventBatches
from tetrad.frontend.api.gateways.vllm_engine.requests import request_of
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.pooling import EMBED, PoolingParams
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.services.errors import Unsupported


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc] # the package ships no types
    """All methods of VllmEngine.

    Args:
        llm: runs the requests.
        limits: the time limits of calls.
        guard: checks operators; only they may read and reset caches, and record profiles.
    """

    def __init__(self, llm: AsyncLLM, limits: CallLimits, guard: Guard) -> None:
        self._llm = llm
        self._guard = guard
        self._calls = GatewayCalls(llm, limits)
        self._started_s = time.monotonic()

    async def Generate(
        self, request: vllm_engine_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]:
        """Stream the deltas of a completion, or only its end."""
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
        prompt = TokensPrompt(prompt_token_ids=list(request.tokenized.input_ids))
        output = await self._calls.pool(request.request_id, prompt, PoolingParams(task=EMBED))
        values = output.outputs.values
        return vllm_engine_pb2.EmbedResponse(
            embedding=values, embedding_dim=len(values), prompt_tokens=len(output.prompt_token_ids)
        )

    async def Abort(
        self, request: vllm_engine_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.AbortResponse:
        """Abort requests and end their streams."""
        self._calls.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.HealthCheckResponse:
        """Return whether requests can be served now, and the reason if they cannot."""
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
        """Return the load of each engine core that answers in time, or of the requested one."""
        self._llm.engine_admin.check_targets()
        ranks = self._llm.engine_ranks
        answer = loads(self._llm.engine_info, ranks, await self._llm.engine_admin.loads_known())
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
        """Stream the content of the engine cores' prefix caches and its changes; for operators.

        Blocks contain the tokens of all users' prompts.
        """
        check_operator(self._guard, context)
        batches = KvEventBatches(request.start_sequence_number)
        async with aclosing(kv_events(self._llm)) as events:
            async for rank, notice in events:
                yield batches.of(rank, notice)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.FlushCacheResponse:
        """Clear the prefix caches, unless requests hold blocks; for operators."""
        check_operator(self._guard, context)
        if await self._llm.engine_admin.reset_prefix_cache():
            return common_pb2.FlushCacheResponse(success=True, message="All cached prefixes are forgotten.")
        return common_pb2.FlushCacheResponse(success=False, message="Requests hold blocks; nothing was forgotten.")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """Start profiles of the engine cores and their workers; for operators."""
        check_operator(self._guard, context)
        options = [field.name for field, _ in request.ListFields()]
        refuse(options, options, "what is recorded, and where to, is a setting of each service")
        await self._llm.engine_admin.start_profile()
        return common_pb2.ProfileResponse(success=True, message="Recording.")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """Stop the profiles and return the paths of their files, on the machine of each service; for operators."""
        check_operator(self._guard, context)
        paths = await self._llm.engine_admin.stop_profile()
        return common_pb2.ProfileResponse(success=True, message=", ".join(paths))

    async def _is_paused(self) -> bool:
        known = await self._llm.engine_admin.loads_known()
        return any(load is not None and load.paused for load in known)
