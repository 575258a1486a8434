"""The stack over gRPC: sends token ids to the engine core through its stub, and receives token ids.

The work is the same as with direct calls in one process (in_process.py), but engine core and worker are services, with gRPC
between them and this client. There is no HTTP and no text. The program runs in a separate process and answers requests line by
line (peers/lines.py).
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
    """An engine core over gRPC as a lines.Engine.

    Args:
        target: address of the engine core.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._handles = itertools.count(1)
        self._prompts: dict[tuple[int, int], list[list[int]]] = {}

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Run until every sequence has its first token, then return the seconds of `steps` further steps.

        All rounds use the same prompts, as over HTTP, so that prefixes in the prefix cache are not computed again.
        """
        if (batch, context) not in self._prompts:
            self._prompts[batch, context] = [new_prompt(context) for _ in range(batch)]
        seconds: float = uvloop.run(self._decode(self._prompts[batch, context], steps))
        return seconds

    def prefill(self, length: int) -> float:
        """Return the seconds from a prompt to its first token."""
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
            # Scaled to `steps` for each sequence, because some sequences may have had more than one token at the start.
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
    """Return (handle, number of new tokens) for the outputs of a step; RuntimeError if the engine refuses a request."""
    if response.WhichOneof("message") == "rejected":
        raise RuntimeError(f"A request was rejected: {response.rejected.status.message}")
    decode = response.outputs.decode
    columns = (np.frombuffer(column, "<u4").tolist() for column in (decode.handles, decode.num_tokens))
    rich = [(output.handle, len(output.new_token_ids) // 4) for output in response.outputs.outputs]
    return [*zip(*columns, strict=True), *rich]


def main() -> None:
    """Connect to the engine core at the address in the first argument, and answer requests."""
    answers = take_stdout()
    answer(OverGrpc(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
