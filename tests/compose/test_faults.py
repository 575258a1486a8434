"""Containers are killed, crash and are replaced under load, as in docs/deployment.md: answers are the undisturbed ones."""

import asyncio
import time

import pytest

from tests.compose.load import FORGOTTEN_AFTER_S, Loaded, greedy_requests
from tests.documents import Page

PAGE = Page.of("docs/deployment.md")
SERVICES = ("worker", "engine-core", "tokenizer", "frontend")
AWAY_S = 1.0


@pytest.fixture(scope="module")
def loaded(cpu):
    loaded = Loaded(cpu, greedy_requests(24, max_tokens=64))
    problems = asyncio.run(loaded.learn())
    assert problems == [], "the stack does not answer the same when nothing disturbs it"
    return loaded


def told(tell, what, tally):
    tell(
        f"{what}: {tally.num_asked} asked, {dict(tally.verdicts)}, {tally.num_retries} retried, longest {tally.longest_s:.1f} s"
    )
    return [f"{failure.outcome.request.name}: {failure.verdict} {failure.outcome.error}" for failure in tally.failures]


def patience(service):
    return FORGOTTEN_AFTER_S if service == "frontend" else None


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_container_that_is_started_again_loses_nothing(cpu, loaded, tell, service):
    def kill_and_start(lives):
        if service == "frontend":
            lives.begin()
        cpu.kill(service)
        time.sleep(AWAY_S)
        cpu.start(service)
        cpu.wait_ready()
        lives.end()

    tally = asyncio.run(loaded.strike(kill_and_start, silence_timeout_s=patience(service)))

    assert told(tell, f"kill {service}", tally) == []
    assert tally.verdicts["equal"] > 0
    assert (tally.num_retries > 0) == (service == "frontend")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_that_crashes_comes_back_by_itself_and_loses_nothing(cpu, loaded, tell, service):
    started_at = cpu.inspect(service)["State"]["StartedAt"]

    def crash(lives):
        if service == "frontend":
            lives.begin()
        cpu.crash(service)
        while cpu.inspect(service)["State"]["StartedAt"] == started_at:
            time.sleep(0.1)
        cpu.wait_ready()
        lives.end()

    tally = asyncio.run(loaded.strike(crash, silence_timeout_s=patience(service)))

    assert told(tell, f"crash {service}", tally) == []


def test_the_page_kills_and_starts_an_engine_core(cpu):
    [kill_and_start] = PAGE.section("Start, stop, failure").blocks()

    cpu.run(kill_and_start)

    cpu.wait_ready()


def test_the_services_behind_the_frontend_are_replaced_under_load_and_nothing_is_lost(cpu, loaded, tell):
    [upgrade] = PAGE.section("Upgrading").blocks()
    first, rest = upgrade.split("docker compose up -d --no-deps --force-recreate frontend")
    before = {service: cpu.container(service) for service in SERVICES}

    tally = asyncio.run(loaded.strike(lambda _: cpu.run(first)))
    cpu.run(upgrade.removeprefix(first))
    cpu.wait_ready()

    assert rest.strip() == ""
    assert told(tell, "upgrade", tally) == []
    assert not set(before.values()) & {cpu.container(service) for service in SERVICES}
