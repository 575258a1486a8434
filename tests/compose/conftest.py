"""docker-compose.yml, run for real: `make compose-test`. Images are built once, each module has a project of its own."""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compose.project import ROOT, Project, shim_docker
from tests.documents import Page
from tetrad.services.hub.model_files import CacheSettings

# Without an engine there is nothing to run: `make compose-test` finds or installs one, and says so here.
ENGINE, COMPOSE, BUILD = (os.environ.get(f"TEST_{name}", "") for name in ("ENGINE", "COMPOSE", "BUILD"))
collect_ignore_glob = [] if ENGINE else ["test_*.py"]

BASE = "python:3.11-slim"
TARGETS = ("frontend", "tokenizer", "engine-core", "worker", "balancer", "certificates")

MakeProject = Callable[..., Project]
_figures: list[str] = []


@pytest.fixture(scope="session")
def tell() -> Callable[[str], None]:
    """Return what takes a line of figures, to be shown behind the run."""
    return _figures.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        terminalreporter.write("".join(f"{line}\n" for line in _figures))


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """Build the images; return their names by target."""
    for target in TARGETS:
        subprocess.run(f"{BUILD} --target {target} -t tetrad-{target} .", shell=True, cwd=ROOT, check=True)
    return {target: f"tetrad-{target}" for target in TARGETS}


@pytest.fixture(scope="session")
def tools(tmp_path_factory) -> Path:
    """Return a directory in which `docker` is the engine of this run."""
    directory = tmp_path_factory.mktemp("tools")
    if ENGINE != "docker":
        shim_docker(directory, compose=COMPOSE, engine=ENGINE)
    return directory


@pytest.fixture(scope="module")
def make_project(images, tools, smollm2) -> Iterator[MakeProject]:
    """Return a maker of projects, by profile, that have the model in their volume; they are removed behind the module."""
    made: list[Project] = []

    def make(profile: str, **options) -> Project:
        project = Project(f"tetrad-test-{uuid.uuid4().hex[:8]}", profile, tools, **options)
        made.append(project)
        [command] = Page.of("docs/deployment.md").section("Volumes").blocks()
        command = command.replace("~/.cache/tetrad", str(CacheSettings().directory()))
        project.run(command.replace(" tokenizer ", " tokenizer-tls ") if profile == "tls" else command)
        return project

    yield make
    for project in made:
        project.down("--volumes")


@pytest.fixture(scope="module")
def cpu(make_project) -> Project:
    """A project of profile cpu that is ready."""
    project = make_project("cpu")
    project.up()
    project.wait_ready()
    return project
