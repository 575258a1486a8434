"""Sweep: runs every level of a load against one server, or alternately against two, and computes the figures of each.

Used by `tetrad bench`. Two servers receive the same requests; their order changes with each round, so that a machine that
becomes slower affects both equally.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from tetrad.cli.load.datasets import Dataset
from tetrad.cli.load.draft_counts import DraftCounts
from tetrad.cli.load.generator import Level, Load, Measured, OnEnd, Server, run_load
from tetrad.cli.load.summary import LATENCIES, PERCENTILES, Figures, LatencyLimits, figures_of

COMPARED = (
    "request_throughput",
    "output_throughput",
    "request_goodput",
    *(f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", *(f"p{percentile}" for percentile in PERCENTILES))),
)
"""Figures whose ratio of two servers is reported."""

CountDrafts = Callable[[Server], DraftCounts]


@dataclass(frozen=True)
class Plan:
    """The loads of a sweep.

    Args:
        levels: the levels, in order.
        dataset: source of the requests of all levels.
        num_requests: number of requests of each round.
        rounds: number of rounds of each level; each has other requests.
        timeout_s: maximum seconds of one request.
        seed: seed of the first round.
        limits: latency limits of good requests.
    """

    levels: Sequence[Level]
    dataset: Dataset
    num_requests: int
    rounds: int
    timeout_s: float
    seed: int
    limits: LatencyLimits

    def load(self, server: Server, level: Level, number: int) -> Load:
        """Return the load of a round."""
        return Load(server, self.dataset, level, self.num_requests, self.timeout_s, self.seed + number)


@dataclass
class LevelResult:
    """A level's results: the rounds of each server, in the order of the servers."""

    level: Level
    servers: Sequence[Server]
    limits: LatencyLimits
    rounds: list[list[Measured]] = field(default_factory=list)

    def measured(self) -> list[Measured]:
        """Return each server's rounds, merged."""
        return [_joined(rounds) for rounds in self.rounds]

    def figures(self) -> list[Figures]:
        """Return each server's figures over all rounds."""
        return [figures_of(each, self.limits) for each in self.measured()]

    def ratios(self) -> dict[str, tuple[float, float, float]]:
        """Return name -> ratio of the first to the second server: of all rounds, and the minimum and maximum of one round."""
        first, second = self.figures()
        pairs = zip(*([figures_of(each, self.limits) for each in rounds] for rounds in self.rounds), strict=True)
        rounds = [{name: _ratio(one, other, name) for name in COMPARED if name in one} for one, other in pairs]
        return {
            name: (_ratio(first, second, name), min(each[name] for each in rounds), max(each[name] for each in rounds))
            for name in COMPARED
            if name in first
        }


async def run_sweep(
    plan: Plan, servers: Sequence[Server], count_drafts: CountDrafts, on_end: OnEnd
) -> AsyncIterator[LevelResult]:
    """Run the levels and yield the result of each when it has ended."""
    for level in plan.levels:
        result = LevelResult(level, servers, plan.limits, [[] for _ in servers])
        before = [await asyncio.to_thread(count_drafts, server) for server in servers]
        for number in range(plan.rounds):
            places = range(len(servers)) if number % 2 == 0 else reversed(range(len(servers)))
            for place in places:
                result.rounds[place].append(await run_load(plan.load(servers[place], level, number), on_end))
        for server, rounds, count in zip(servers, result.rounds, before, strict=True):
            rounds[-1].drafts = (await asyncio.to_thread(count_drafts, server)).since(count)
        yield result


def _joined(rounds: Sequence[Measured]) -> Measured:
    return replace(
        rounds[0],
        ended_at=rounds[-1].ended_at,
        duration_s=sum(each.duration_s for each in rounds),
        clients=[client for each in rounds for client in each.clients],
        drafts=rounds[-1].drafts,
    )


def _ratio(first: Figures, second: Figures, name: str) -> float:
    return first[name] / second[name] if second[name] else math.nan
