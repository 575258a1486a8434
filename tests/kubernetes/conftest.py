"""Commands of docs/kubernetes.md, run with a stand-in where they need a cluster or an engine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.manifests import KUBECTL, ROOT
from tests.kubernetes.page import Call

# They need podman and images, which `make kube-play-test` provides.
collect_ignore = [] if os.environ.get("TEST_KUBE_PLAY") else ["test_kube_play.py", "test_kube_play_ranks.py"]

_NOT_HERE = ("docker", "kind", "curl", "kubectl")


@pytest.fixture
def run(tmp_path) -> Callable[[str], list[Call]]:
    """Return a runner of a block of commands, in a directory that has the manifests: block -> the calls it made, in order."""
    return runner(tmp_path)


def runner(directory: Path) -> Callable[[str], list[Call]]:
    """Return a runner as `run` is, which keeps its files in a directory."""
    programs, work, log = directory / "bin", directory / "work", directory / "log"
    programs.mkdir()
    shutil.copytree(ROOT / "deploy/kubernetes", work / "deploy/kubernetes")
    for name in _NOT_HERE:
        (programs / name).symlink_to(Path(__file__).with_name("stand_in.py"))
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "STAND_IN_LOG": str(log), "STAND_IN_KUBECTL": str(KUBECTL)}

    def run_block(block: str) -> list[Call]:
        # What was started with `&` may be the last to write.
        call = ["bash", "-euc", f"{block}\nwait"]
        ran = subprocess.run(call, cwd=work, env=variables, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return [Call(**json.loads(line)) for line in log.read_text().splitlines()]

    return run_block
