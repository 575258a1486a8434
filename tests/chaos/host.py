"""Host: the process that supervises a chaos stack, so that the harness can freeze it, block its stderr, and outlive it.

`python -m tests.chaos.host`, run by stack.py. The first line of stdin is an `Order`; every further line names a service to
restart. Reports events on stdout, one JSON object a line. The end of stdin ends it and the stack.
"""

import asyncio
import base64
import json
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import TetradError
from tetrad.services.settings import ServiceSettings
from tetrad.stack.child import ChildState, RestartPolicy
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.stack_settings import StackSettings

# What is killed every few seconds would otherwise be restarted later each time, as what cannot run is.
_POLICY = RestartPolicy(first_delay_s=0.1, max_delay_s=0.1)
_RESPONSES = "responses"


@dataclass(frozen=True)
class Order:
    """What to run.

    Args:
        settings: of the services.
        addresses: where callers reach services, by the link's name; of other links, a socket in the stack's directory.
        start_timeout_s: how long a start, or a restart, may take.
    """

    settings: StackSettings
    addresses: Mapping[str, str]
    start_timeout_s: float

    def line(self) -> bytes:
        """Return the line of stdin."""
        return base64.b64encode(pickle.dumps(self)) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> "Order":
        """Return what `line` returned."""
        order = pickle.loads(base64.b64decode(line))
        assert isinstance(order, cls)
        return order


def link_name(caller: str, target: str) -> str:
    """Return the name of the link between a service and a target of its own."""
    return f"{caller}>{Path(target).stem}"


class Host:
    """Runs a stack as an order says."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._links: dict[str, tuple[str, str]] = {}
        self._stack = LocalStack(order.settings, serve=True, on_state=self._on_state, policy=_POLICY, adapt=self._adapt)

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Start, restart what is named, and end with the lines."""
        links = [{"name": name, "listen": listen, "target": target} for name, (listen, target) in self._links.items()]
        admin = self._stack.engine_admin_targets[0]
        _say(event="made", directory=str(self._stack.directory), engine_admin_target=admin, links=links)
        restarts = set[asyncio.Task[None]]()
        try:
            await lines.readline()  # the links listen
            await self._stack.start(timeout_s=self._order.start_timeout_s)
            _say(event="up")
            while line := await lines.readline():
                restarts.add(asyncio.create_task(self._restart(line.decode().strip())))
        finally:
            for restart in restarts:
                restart.cancel()
            await asyncio.gather(*restarts, return_exceptions=True)
            await self._stack.close()

    async def _restart(self, name: str) -> None:
        error = ""
        try:
            await self._stack.restart(name, timeout_s=self._order.start_timeout_s)
        except (TetradError, TimeoutError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        _say(event="restarted", name=name, error=error)

    def _on_state(self, name: str, state: ChildState, why: str) -> None:
        _say(event="state", name=name, state=state, why=why, pid=self._stack.pids().get(name))

    def _adapt(self, name: str, settings: ServiceSettings) -> ServiceSettings:
        """Return settings in which every target is a link of this service's own, and the responses are kept with the stack."""
        changed: dict[str, Any] = {}
        for field, value in settings.model_dump().items():
            if field.endswith("_target") and isinstance(value, str):
                # Of a worker group, the addresses of all ranks.
                changed[field] = ",".join(self._link(name, target) for target in value.split(","))
            elif field.endswith("_targets"):
                changed[field] = tuple(self._link(name, target) for target in value)
        if isinstance(settings, FrontendSettings):
            directory = Path(settings.engine_targets[0].removeprefix("unix:")).parent
            changed["responses_store"] = str(directory / _RESPONSES / "store.sqlite3")
            (directory / _RESPONSES).mkdir(exist_ok=True)
        return type(settings)(**settings.model_dump() | changed)

    def _link(self, caller: str, target: str) -> str:
        name, path = link_name(caller, target), Path(target.removeprefix("unix:"))
        listen = self._order.addresses.get(name) or f"unix:{path.with_name(f'{caller}-{path.stem}.link')}"
        self._links[name] = (listen, str(path))
        return listen


def _say(**event: Any) -> None:
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


async def _main() -> None:
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await Host(Order.of_line(await lines.readline())).run(lines)


if __name__ == "__main__":
    # What is pickled has its name in the module as others import it.
    from tests.chaos import host

    asyncio.run(host._main())
