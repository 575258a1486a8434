"""The stack over gRPC: drives the engine core by its stub, token ids in and token ids out.

The same work as direct calls in one process (in_process.py), with the engine core and the worker as services and gRPC between
all three: no HTTP and no text on either side. Runs in its own process and answers requests line by line (peers/lines.py).
"""

import itertools
import sys
import time
from collections.abc import AsyncIterator, Sequence

import grpc
import numpy as np
import uvloop

from benchmarks.peers.lines import answer, take_stdout
from benchmarks.streams import new_prompt
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc, types_pb2

Responses = AsyncIterator[engine_core_pb2.SessionResponse]


class OverGrpc:
    """See lines.Engine.

    Args:
        target: of the engine core.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._handles = itertools.count(1)
        self._prompts: dict[tuple[int, int], list[list[int]]] = {}

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Run until every sequence has its first token, then the steps that are counted.

        The same prompts in every round, as over HTTP: what they have in the prefix cache is not computed again.
        """
        if (batch, context) not in self._prompts:
            self._prompts[batch, context] = [new_prompt(context) for _ in range(batch)]
        seconds: float = uvloop.run(self._decode(self._prompts[batch, context], steps))
        return seconds

    def prefill(self, length: int) -> float:
        """Run one prompt to its first token."""
        seconds: float = uvloop.run(self._prefill(new_prompt(length)))
        return seconds

    async def _decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        async with grpc.aio.insecure_channel(self._target) as channel:
            responses = await self._generate(channel, prompts, steps + 1)
            begun, num_tokens, start = set[int](), 0, 0.0
            async for response in responses:
                for handle, count in _counts(response):
                    begun.add(handle)
                    num_tokens += count
                if len(begun) == len(prompts):
                    if not start:
                        start, before = time.perf_counter(), num_tokens
                    if num_tokens == len(prompts) * (steps + 1):
                        break
            # In proportion, should some have run ahead of others.
            return (time.perf_counter() - start) * len(prompts) * steps / (num_tokens - before)

    async def _prefill(self, prompt: Sequence[int]) -> float:
        async with grpc.aio.insecure_channel(self._target) as channel:
            start = time.perf_counter()
            async for response in await self._generate(channel, [prompt], 1):
                if any(count for _, count in _counts(response)):
                    break
            return time.perf_counter() - start

    async def _generate(self, channel: grpc.aio.Channel, prompts: Sequence[Sequence[int]], max_tokens: int) -> Responses:
        call = engine_core_pb2_grpc.EngineCoreServiceStub(channel).Session()
        hello = engine_core_pb2.SessionHello(client_id="benchmark", schema_revision=SCHEMA_REVISION)
        await call.write(engine_core_pb2.SessionRequest(hello=hello))
        requests = [self._request(prompt, max_tokens) for prompt in prompts]
        await call.write(engine_core_pb2.SessionRequest(add=engine_core_pb2.AddRequests(requests=requests)))
        responses: Responses = call.__aiter__()
        return responses

    def _request(self, prompt: Sequence[int], max_tokens: int) -> engine_core_pb2.EngineCoreRequest:
        handle = next(self._handles)
        return engine_core_pb2.EngineCoreRequest(
            request_id=str(handle),
            handle=handle,
            prompt_token_ids=np.array(prompt, "<u4").tobytes(),
            sampling_params=types_pb2.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            arrival_time_unix_nanos=time.time_ns(),
        )


def _counts(response: engine_core_pb2.SessionResponse) -> Sequence[tuple[int, int]]:
    """Return (handle, number of its new tokens) of a step's outputs; RuntimeError if the engine refuses a request."""
    if response.WhichOneof("message") == "rejected":
        raise RuntimeError(f"A request was rejected: {response.rejected.status.message}")
    decode = response.outputs.decode
    columns = (np.frombuffer(column, "<u4").tolist() for column in (decode.handles, decode.num_tokens))
    rich = [(output.handle, len(output.new_token_ids) // 4) for output in response.outputs.outputs]
    return [*zip(*columns, strict=True), *rich]


def main() -> None:
    """Find the engine core that the first argument names, and answer."""
    answers = take_stdout()
    answer(OverGrpc(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
