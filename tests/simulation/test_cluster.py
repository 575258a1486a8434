"""Under random faults of a cluster, each request that its client keeps brings the tokens of an undisturbed run, once."""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.grids import grid
from tests.simulation.cluster import NUM_EACH, Cluster
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams

NUM_REQUESTS = 40
WAIT_S = 60


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@dataclass
class Asked:
    """One client's request. `kept`: its client waits for the end."""

    request_id: str
    prompt: str
    max_tokens: int
    frontend: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    kept: bool = True
    reading: asyncio.Task[None] | None = None

    async def run(self, cluster):
        params = SamplingParams(
            max_tokens=self.max_tokens, seed=len(self.prompt), ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        async for output in cluster.frontends[self.frontend].generate(self.prompt, params, self.request_id):
            self.token_ids += output.outputs[0].token_ids
            self.text += output.outputs[0].text

    def start(self, cluster):
        self.reading = asyncio.create_task(self.run(cluster))


def requests_of(random):
    return [
        Asked(f"r{i}", "a" * random.randrange(1, 120), random.randrange(1, 60), random.randrange(NUM_EACH))
        for i in range(NUM_REQUESTS)
    ]


async def disturb(cluster, requests, random):
    """Start the requests one after another; abort some, leave some, and end each service of the first of its kind once."""
    restarts = [cluster.engine_cores[0], cluster.workers[1], cluster.tokenizers[0]]
    moments = dict(zip(random.sample(range(5, NUM_REQUESTS), len(restarts)), restarts, strict=True))
    restarting = []
    for number, request in enumerate(requests):
        request.start(cluster)
        if number in moments:
            restarting.append(asyncio.create_task(moments[number].restart()))
        victim = random.choice(requests[: number + 1])
        match random.choice(["abort", "leave", "wait", "wait", "wait"]):
            case "abort":
                victim.kept = False
                await cluster.frontends[victim.frontend].abort(victim.request_id)
            case "leave":
                victim.kept = False
                victim.reading.cancel()
            case "wait":
                await asyncio.sleep(random.uniform(0, 0.02))
    await asyncio.gather(*restarting)


@pytest.mark.parametrize("seed", grid(range(5), lambda seed: seed < 2))
async def test_kept_requests_bring_the_tokens_of_an_undisturbed_run(tiny_model, seed):
    random = Random(seed)
    requests = requests_of(random)
    undisturbed = [Asked(each.request_id, each.prompt, each.max_tokens, each.frontend) for each in requests]

    async with asyncio.timeout(WAIT_S), Cluster(tiny_model) as cluster:
        await asyncio.gather(*(each.run(cluster) for each in undisturbed))
        await disturb(cluster, requests, random)
        await asyncio.gather(*(each.reading for each in requests), return_exceptions=True)
        while any(await cluster.loads()):  # noqa: ASYNC110 - a load sends no signal
            await asyncio.sleep(0.01)

    assert sum(each.backends.engines.num_losses for each in cluster.frontends) >= 1
    kept = [(each, before) for each, before in zip(requests, undisturbed, strict=True) if each.kept]
    assert len(kept) > NUM_REQUESTS // 2
    for each, before in kept:
        assert each.reading.exception() is None
        assert (each.token_ids, each.text) == (before.token_ids, before.text)
    for each, before in zip(requests, undisturbed, strict=True):
        assert each.token_ids == before.token_ids[: len(each.token_ids)]
