"""Project: docker-compose.yml under test, with its own containers, network, volumes and port.

Commands are written for docker; `shim_docker` makes them run on another engine. Knows containers and HTTP's readiness; knows
nothing of requests.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 180.0
_POLL_S = 0.2
_SHIM = """\
#!/bin/sh
# Stands for docker: its images are built before.
if [ "$1" = compose ]; then
  shift
  [ "$1" = build ] && exit 0
  exec {compose} "$@"
fi
exec {engine} "$@"
"""


def shim_docker(directory: Path, *, compose: str, engine: str) -> None:
    """Write a `docker` that is another engine."""
    shim = directory / "docker"
    shim.write_text(_SHIM.format(compose=compose, engine=engine))
    shim.chmod(0o755)


class Project:
    """One project.

    Args:
        name: of the project: prefix of all that it has.
        profile: what runs.
        tools: directory with a `docker`, before all others.
        directory: where commands run.
        variables: further ones for docker-compose.yml.
    """

    def __init__(
        self, name: str, profile: str, tools: Path, directory: Path = ROOT, variables: Mapping[str, str] | None = None
    ) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        self.name = name
        self._directory = directory
        self._environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "COMPOSE_FILE": str(ROOT / "docker-compose.yml"),
            "COMPOSE_PROJECT_NAME": name,
            "COMPOSE_PROFILES": profile,
            "TETRAD_PORT": str(self.port),
            "TETRAD_GRPC_PORT": str(self.grpc_port),
            **(variables or {}),
        }

    @property
    def url(self) -> str:
        """Where HTTP is."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, commands: str, *, timeout_s: float = 300.0) -> str:
        """Run commands of a page, each of which must succeed; return what they print."""
        for host in ("127.0.0.1", "localhost"):
            commands = commands.replace(f"{host}:8000", f"{host}:{self.port}")
        commands = commands.replace("curl ", "curl -sS --fail-with-body ")
        call = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            call, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *services: str) -> None:
        """Start services; all if none is named."""
        self.run(shlex.join(["docker", "compose", "up", "-d", "--no-build", *services]))

    def down(self, *flags: str) -> float:
        """Stop and remove all; return how long it took, in seconds."""
        started_at = time.monotonic()
        self.run(shlex.join(["docker", "compose", "down", *flags]))
        return time.monotonic() - started_at

    def containers(self, service: str = "") -> list[str]:
        """Return the ids of a service's containers, running or not; of the whole project if none is named."""
        labels = [f"com.docker.compose.project={self.name}", *([f"com.docker.compose.service={service}"] if service else [])]
        filters = " ".join(f"--filter label={label}" for label in labels)
        return self.run(f"docker ps -aq {filters}").split()

    def container(self, service: str) -> str:
        """Return the id of a service's one container."""
        [found] = self.containers(service)
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine knows of a service's container."""
        [state] = json.loads(self.run(f"docker inspect {self.container(service)}"))
        return dict(state)

    def kill(self, service: str) -> None:
        """Kill a service's container, as an operator would."""
        self.run(f"docker kill {self.container(service)}")

    def start(self, service: str) -> None:
        """Start a service's container that has ended."""
        self.run(f"docker start {self.container(service)}")

    def crash(self, service: str) -> None:
        """Kill what runs in a service's container: from within, so that nobody has stopped it."""
        self.run(f"docker exec {self.container(service)} python -c 'import os; os.kill(-1, 9)' || true")

    def python(self, service: str, source: str) -> str:
        """Run a program in a service's container; return what it prints."""
        return self.run(f"docker exec {self.container(service)} python -c {shlex.quote(source)}")

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until requests are taken; return how long that took, in seconds."""
        started_at = time.monotonic()
        while time.monotonic() < started_at + timeout_s:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return time.monotonic() - started_at
            time.sleep(_POLL_S)
        raise AssertionError(f"not ready after {timeout_s:g} s\n{self.logs()}")

    def logs(self) -> str:
        """Return the last lines of every container."""
        lines = [self.run(f"docker logs --tail 15 {container} 2>&1") for container in self.containers()]
        return "\n".join(lines)


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
