"""Fixtures: supervisors of real child processes."""

import pytest

from tests.tetrad.stack.children import States
from tetrad.stack.child import Child, RestartPolicy
from tetrad.stack.supervisor import Supervisor

QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.04)


@pytest.fixture
async def supervise():
    """Return a maker of started supervisors: groups of children -> (supervisor, states)."""
    running: list[Supervisor] = []

    def start(*groups: list[Child], policy: RestartPolicy = QUICK, stop_timeout_s: float = 2.0) -> tuple[Supervisor, States]:
        states = States()
        running.append(Supervisor(groups, policy=policy, on_state=states, stop_timeout_s=stop_timeout_s))
        running[-1].start()
        return running[-1], states

    yield start
    for supervisor in running:
        await supervisor.stop()
