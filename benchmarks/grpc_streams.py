"""gRPC streams: clients of the public gRPC API that record the arrival of messages, for soak.py."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import grpc

from benchmarks.streams import new_prompt
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

_PROMPT_LEN = 32


@dataclass
class GrpcResult:
    """The results of all calls. Gaps between messages are in seconds."""

    num_calls: int = 0
    gaps_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


async def grpc_streams(target: str, *, clients: int, seconds: float, max_tokens: int) -> GrpcResult:
    """Keep `clients` calls open for `seconds`; when one ends, start another."""
    result = GrpcResult()
    end = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def one() -> None:
            while time.monotonic() < end:
                params = types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
                ids = inference_pb2.TokenIdList(ids=new_prompt(_PROMPT_LEN))
                last, num_tokens = 0.0, 0
                try:
                    async for response in stub.Generate(inference_pb2.GenerateRequest(token_ids=ids, sampling_params=params)):
                        now = time.perf_counter()
                        if last:
                            result.gaps_s.append(now - last)
                        last, num_tokens = now, num_tokens + len(response.token_ids)
                except grpc.aio.AioRpcError as error:
                    result.errors[f"gRPC {error.code().name}: {error.details()}"] += 1
                    continue
                result.num_calls += 1
                if num_tokens != max_tokens:
                    result.errors[f"gRPC: {num_tokens} tokens instead of {max_tokens}"] += 1

        await asyncio.gather(*(one() for _ in range(clients)))
    return result
