"""Soak: many long streams on the simulated device, then a queue of maximum length.

It reports errors, the evenness of token streams, admission times, and whether memory grows. `python -m benchmarks.soak
--clients 1000 --seconds 120`; the exit status is 1 if a target is missed.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable

import uvloop

from benchmarks.figures import percentile
from benchmarks.grpc_streams import GrpcResult, grpc_streams
from benchmarks.levels import Levels
from benchmarks.stack import MODEL, running
from benchmarks.streams import StreamClient, new_prompt, stream_once

_MAX_TAIL_RATIO = 5.0
_MAX_ADMISSION_S = 0.05
_PROMPT_LEN = 32
_NUM_PROBES = 300


async def steady_streams(url: str, *, clients: int, seconds: float, max_tokens: int) -> list[StreamClient]:
    """Keep `clients` streams open for `seconds`, and return all streams."""
    finished: list[StreamClient] = []
    await keep_streams(url, finished.append, clients=clients, seconds=seconds, max_tokens=max_tokens)
    return finished


async def keep_streams(
    url: str, take: Callable[[StreamClient], object], *, clients: int, seconds: float, max_tokens: int
) -> None:
    """Keep `clients` streams open for `seconds`; pass each stream that ends to `take`, and start another."""
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        # The streams do not start at once, because this is a steady load; Queue measures a burst.
        await asyncio.sleep(min(seconds / 4, 10) * number / clients)
        while time.monotonic() < end:
            body = {
                "model": MODEL, "prompt": new_prompt(_PROMPT_LEN), "max_tokens": max_tokens, "ignore_eos": True,
                "temperature": 0,
            }  # fmt: skip
            take(await stream_once(url, body))

    await asyncio.gather(*(one(number) for number in range(clients)))


class Queue:
    """Requests that wait while the engine is paused, and further requests beyond the server's limit.

    Args:
        url: URL of a server that accepts `requests` requests.
        requests: number of waiting requests.
    """

    def __init__(self, url: str, requests: int) -> None:
        self._url = url
        self._requests = requests
        self.refusals: list[StreamClient] = []
        self.waiting: list[StreamClient] = []

    async def run(self) -> None:
        """Fill the queue, send more, resume the engine, and wait until all requests have an answer."""
        await self._order("pause?mode=keep")
        asked = []
        for _ in range(self._requests):
            asked.append(asyncio.create_task(self._ask()))
            # Not faster than the server accepts connections: the listener's backlog is not to be measured.
            await asyncio.sleep(0.002)
        while (await self._num_unfinished()) < self._requests - sum(task.done() for task in asked):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        for _ in range(_NUM_PROBES):
            self.refusals.append(await self._ask())
            await asyncio.sleep(0.005)
        await self._order("resume")
        self.waiting = await asyncio.gather(*asked)

    async def _ask(self) -> StreamClient:
        body = {"model": MODEL, "prompt": new_prompt(_PROMPT_LEN), "max_tokens": 8, "ignore_eos": True}
        return await stream_once(self._url, body)

    async def _order(self, what: str) -> None:
        request = urllib.request.Request(f"{self._url}/{what}", method="POST")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=60).close())

    async def _num_unfinished(self) -> int:
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{self._url}/load", timeout=60).read())
        return int(json.loads(answer)["server_load"])


async def soak(url: str, root: int, args: argparse.Namespace) -> list[str]:
    """Run all measurements; return a description of each target that was missed."""
    levels = Levels(root)
    watching = asyncio.create_task(levels.watch(max(args.seconds / 60, 0.5)))
    over_grpc = asyncio.create_task(
        grpc_streams(args.grpc_target, clients=args.grpc_clients, seconds=args.seconds, max_tokens=args.max_tokens)
    )
    clients = await steady_streams(url, clients=args.clients, seconds=args.seconds, max_tokens=args.max_tokens)
    grpc_result = await over_grpc
    watching.cancel()
    sys.stdout.write("\n".join([*levels.lines(), ""]))
    faults = _judge_streams(clients, args.max_tokens, grpc_result) + levels.judge()
    if args.queued:
        queue = Queue(url, args.queued)
        await queue.run()
        faults += _judge_queue(queue)
    return faults


def _judge_streams(clients: list[StreamClient], max_tokens: int, over_grpc: GrpcResult) -> list[str]:
    errors = Counter(client.error or f"HTTP {client.status}" for client in clients if client.error or client.status != 200)
    errors.update(over_grpc.errors)
    gaps = [gap for client in clients for gap in client.gaps_s]
    median, tail = percentile(gaps, 0.5), percentile(gaps, 0.99)
    sys.stdout.write(
        f"streams {len(clients)} + {over_grpc.num_calls} over gRPC, tokens at most {len(clients) * max_tokens}, "
        f"chunks {sum(client.num_chunks for client in clients)}, errors {sum(errors.values())}\n"
        f"inter-token latency: median {median * 1000:.2f} ms, p99 {tail * 1000:.2f} ms ({tail / max(median, 1e-9):.1f} x), "
        f"max {max(gaps, default=0) * 1000:.0f} ms; over gRPC p99 {percentile(over_grpc.gaps_s, 0.99) * 1000:.2f} ms\n"
    )
    first = [client.answered_s for client in clients if client.answered_s is not None]
    sys.stdout.write(f"first token: median {percentile(first, 0.5):.2f} s, p99 {percentile(first, 0.99):.2f} s\n")
    faults = [f"{number} x {error}" for error, number in errors.most_common(5)]
    if tail > _MAX_TAIL_RATIO * median:
        faults.append(f"p99 of the inter-token latency is {tail / max(median, 1e-9):.1f} times the median")
    return faults


def _judge_queue(queue: Queue) -> list[str]:
    served = [client for client in queue.waiting if client.status == 200 and not client.error]
    refused = [client for client in queue.waiting if client.status == 429]
    answers = [client.answered_s or 0.0 for client in queue.refusals]
    tail = percentile(answers, 0.99)
    sys.stdout.write(
        f"queue of {len(queue.waiting)}: served {len(served)}, refused {len(refused)}; on top {len(answers)} were answered "
        f"within median {percentile(answers, 0.5) * 1000:.1f} ms, p99 {tail * 1000:.1f} ms\n"
    )
    faults = []
    lost = [client for client in queue.waiting if client.status != 429 and (client.error or client.status != 200)]
    if lost:
        faults.append(f"{len(lost)} queued requests were lost; the first: HTTP {lost[0].status} {lost[0].error}")
    if any(client.status != 429 for client in queue.refusals):
        faults.append(f"statuses on top of a full queue: {Counter(client.status for client in queue.refusals)}")
    if tail > _MAX_ADMISSION_S:
        faults.append(f"p99 of the answers on top of the queue is {tail * 1000:.0f} ms")
    return faults


def main() -> None:
    """Start a stack, run the soak, and print the missed targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000, help="streams at the same time")
    parser.add_argument("--grpc-clients", type=int, default=32, help="further streams over the public gRPC API")
    parser.add_argument("--running", type=int, default=1100, help="requests that the engine runs at the same time")
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds that a step of the simulated device takes")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--max-tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--queued", type=int, default=10_000, help="requests that wait at the same time, afterwards; 0: none")
    parser.add_argument("flags", nargs="*", help="further flags of tetrad serve")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    # Requests reach the frontend's limit first, because the engine's queue is a little longer.
    os.environ["TETRAD_ENGINE_CORE_MAX_NUM_QUEUED_REQS"] = str(max(args.queued, 2 * args.clients) + 1)
    os.environ["TETRAD_WORKER_SIM_SECONDS_PER_STEP"] = str(args.step_s)
    limits = ("--max-num-requests", str(max(args.queued, 2 * args.clients)), "--max-num-seqs", str(args.running))
    with running("--device", "sim", *limits, *args.flags) as stack:
        args.grpc_target = stack.grpc_target
        faults = uvloop.run(soak(stack.url, stack.pid, args))
    for fault in faults:
        sys.stdout.write(f"NOT SO: {fault}\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
