"""A load generator for OpenAI's completions endpoint: many streams in one process, which uses little CPU time.

It can send to any server with OpenAI's API, so that one client (streams.py) measures all systems. It also runs alone:
`python -m benchmarks.http_load --url http://127.0.0.1:8000 --concurrency 64 --requests 256 --max-tokens 128`.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks.figures import median
from benchmarks.streams import StreamClient, new_prompt, new_text, stream_once

_REST_S = 0.5
"""Seconds of rest between two systems. OpenMP threads of a peer spin for 0.2 s after their last computation, on cores that the
next system needs."""


@dataclass(frozen=True)
class LoadResult:
    """The results of a run. Latencies are in seconds, one per request; gaps are those between the chunks of all streams."""

    concurrency: int
    num_requests: int
    num_tokens: int
    duration_s: float
    ttft_s: list[float]
    tpot_s: list[float]
    gaps_s: list[float]
    decode_tokens_per_s: float
    """Output tokens per second of all streams together while all decode: from the latest first chunk to the earliest end.

    This is meaningful only if there are as many requests as streams."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of the whole run, from the first request to the last answer."""
        return self.num_tokens / self.duration_s

    def summary(self) -> str:
        """Return the results in one line of text."""
        return (
            f"concurrency {self.concurrency:3}: {self.tokens_per_s:8.0f} tok/s   "
            f"TTFT {median(self.ttft_s) * 1000:7.1f} ms   TPOT {median(self.tpot_s) * 1000:7.2f} ms (medians)"
        )


async def run_load(
    url: str,
    *,
    model: str,
    concurrency: int,
    num_requests: int,
    max_tokens: int,
    prompt_len: int = 32,
    as_text: bool = False,
    prompts: Sequence[Sequence[int]] | None = None,
    fields: Mapping[str, object] | None = None,
) -> LoadResult:
    """Send streaming completions, `concurrency` at a time; RuntimeError if any fails or has too few tokens.

    Args:
        url: URL of the server.
        model: name of the model on the server.
        concurrency: number of requests that are open at the same time.
        num_requests: number of all requests.
        max_tokens: number of output tokens of each request; none ends before.
        prompt_len: number of random, new ids of each prompt, so that no prefix cache has them.
        as_text: send words of about as many tokens instead of ids, so that the server tokenizes them.
        prompts: ids of prompts to use one after another, instead of random ones.
        fields: fields added to each request's body.
    """
    done: list[StreamClient] = []
    numbers = iter(range(num_requests))

    async def client() -> None:
        for number in numbers:
            made = new_text if as_text else new_prompt
            prompt = made(prompt_len) if prompts is None else prompts[number % len(prompts)]
            body = {
                "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "stream_options": {"include_usage": True}, **(fields or {}),
            }  # fmt: skip
            done.append(await stream_once(url, body))
            _check(done[-1], max_tokens)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    duration_s = time.perf_counter() - start
    first = [each.first_chunk_s or 0.0 for each in done]
    return LoadResult(
        concurrency,
        num_requests,
        num_requests * max_tokens,
        duration_s,
        first,
        [(each.total_s - ttft) / max(max_tokens - 1, 1) for each, ttft in zip(done, first, strict=True)],
        [gap for each in done for gap in each.gaps_s],
        _rate_together(done, max_tokens),
    )


def rest() -> None:
    """Wait until the system that was measured last is idle."""
    time.sleep(_REST_S)


def load(
    url: str,
    model: str,
    concurrency: int,
    *,
    num_requests: int,
    max_tokens: int,
    prompt_len: int = 32,
    as_text: bool = False,
    prompts: Sequence[Sequence[int]] | None = None,
    fields: Mapping[str, object] | None = None,
) -> LoadResult:
    """Rest, then run one load on a new event loop; see run_load."""
    rest()
    requests = run_load(
        url, model=model, concurrency=concurrency, num_requests=num_requests, max_tokens=max_tokens,
        prompt_len=prompt_len, as_text=as_text, prompts=prompts, fields=fields,
    )  # fmt: skip
    result: LoadResult = uvloop.run(requests)
    return result


def _rate_together(streams: Sequence[StreamClient], num_tokens: int) -> float:
    """Return tokens/s of the time in which all streams decoded; 0 if there is no such time."""
    start = max(each.chunk_times_s[0] for each in streams)
    end = min(each.chunk_times_s[-1] for each in streams)
    if end <= start:
        return 0.0
    total = 0.0
    for each in streams:
        inside = sum(size for when, size in zip(each.chunk_times_s, each.chunk_sizes, strict=True) if start < when <= end)
        # A server may send several tokens in one chunk.
        total += inside * num_tokens / each.num_chunks
    return total / (end - start)


def _check(stream: StreamClient, max_tokens: int) -> None:
    if stream.status != 200 or stream.error:
        raise RuntimeError(f"HTTP {stream.status}: {stream.error}")
    if stream.num_tokens != max_tokens:
        raise RuntimeError(f"A request has {stream.num_tokens} tokens instead of {max_tokens}.")


def main() -> None:
    """Run one load and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-len", type=int, default=32, help="tokens")
    args = parser.parse_args()
    measured = load(
        args.url, args.model, args.concurrency, num_requests=args.requests, max_tokens=args.max_tokens,
        prompt_len=args.prompt_len,
    )  # fmt: skip
    print(measured.summary())


if __name__ == "__main__":
    main()
