"""A service that is missing for a minute, at the start or later: all works when it is back, without a restart of another one.

TEST_COMPOSE_MISSING_S makes the minute shorter.
"""

import os
import time

import pytest

SERVICES = ("frontend", "tokenizer", "engine-core", "worker")
MISSING_S = float(os.environ.get("TEST_COMPOSE_MISSING_S", "60"))


@pytest.mark.parametrize("late", SERVICES)
def test_a_service_that_starts_a_minute_late_is_waited_for(make_project, tell, late):
    project = make_project("cpu")
    project.up(*(service for service in SERVICES if service != late))
    started_at = {service: project.inspect(service)["State"]["StartedAt"] for service in SERVICES if service != late}
    time.sleep(MISSING_S)

    project.up(late)

    tell(f"ready {project.wait_ready():.1f} s after {late}, which was {MISSING_S:g} s late")
    assert {service: project.inspect(service)["State"]["StartedAt"] for service in started_at} == started_at
    project.down("--volumes")


def test_services_that_are_away_for_a_minute_are_waited_for(cpu, tell):
    for away in SERVICES:
        others = {service: cpu.inspect(service)["State"]["StartedAt"] for service in SERVICES if service != away}
        cpu.kill(away)
        time.sleep(MISSING_S)

        cpu.start(away)

        tell(f"ready {cpu.wait_ready():.1f} s after {away}, which was away for {MISSING_S:g} s")
        assert {service: cpu.inspect(service)["State"]["StartedAt"] for service in others} == others
