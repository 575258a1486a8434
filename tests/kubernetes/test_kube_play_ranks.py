"""Two workers of a group in pods of their own, as in overlay `tensor-parallel`: they meet over gloo; a killed rank is replaced.

Run by `make kube-play-test`. Each pod has its own network namespace and address. The model is Qwen2.5-Coder-0.5B, whose
heads are divisible by two.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.manifests import DIRECTORY, KUBECTL, ROOT
from tests.kubernetes.podman_pods import ask, free_port, imported, podman

_BUILD = os.environ.get("TEST_BUILD", "podman build").split()
_MOUNT = Path("/var/cache/tetrad")
_OVERLAY = """
resources: [../deploy/overlays/tensor-parallel]
configMapGenerator:
  - {name: settings, namespace: tetrad, behavior: merge, literals: [model=MODEL]}
patches:
  - target: {kind: LeaderWorkerSet, name: engine}
    patch: |
      - op: add
        path: /spec/leaderWorkerTemplate/leaderTemplate/spec/containers/0/env/-
        value: {name: TETRAD_ENGINE_CORE_DTYPE, value: float32}
"""
"""In float32, because the blocks of the file's quantized weights cannot be divided."""
_READY_S = 300


@pytest.fixture(scope="module")
def mark() -> str:
    """The prefix of the names of this run."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def model(mark) -> Iterator[Path]:
    """A volume with the model; gives the model's path in the pods."""
    path = Path(subprocess.check_output([sys.executable, ROOT / "tools/qwen_model.py"], text=True, cwd=ROOT).strip())
    cache = path.parents[2]
    with imported(f"{mark}-models", cache, path):
        yield _MOUNT / path.relative_to(cache)


@pytest.fixture(scope="module")
def url(model, mark, tmp_path_factory) -> Iterator[str]:
    """Play the pods of the first group, the frontend and the tokenizer; return the frontend's URL."""
    for service in ("frontend", "tokenizer", "engine-core", "worker"):
        subprocess.run([*_BUILD, "--target", service, "-t", f"tetrad-{service}:0.1.0", ROOT], check=True, timeout=3000)
    port = free_port()
    files = _converted(tmp_path_factory.mktemp("play"), model, port)
    podman("network", "create", mark)
    try:
        for file in files:
            podman("kube", "play", "--network", f"{mark}:alias={file.stem}", str(_named(file, mark)))
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, mark)
        yield f"{url}/v1"
    finally:
        for pod in podman("pod", "ls", "--format", "{{.Name}}", "--filter", f"name={mark}", check=False).split():
            podman("pod", "rm", "-f", "-t", "2", pod, check=False)
        podman("network", "rm", "-f", mark, check=False)


def _converted(work: Path, model: Path, port: int) -> list[Path]:
    """Return the files of podman.py for the overlay with another model."""
    (work / "deploy").symlink_to(DIRECTORY)
    (work / "overlay").mkdir()
    (work / "overlay/kustomization.yaml").write_text(_OVERLAY.replace("MODEL", str(model)))
    call = [KUBECTL, "kustomize", "--load-restrictor", "LoadRestrictionsNone", work / "overlay"]
    manifests = subprocess.check_output(call, text=True)
    convert = [sys.executable, DIRECTORY / "podman.py", work / "played", str(port)]
    subprocess.run(convert, input=manifests, text=True, check=True)
    return sorted((work / "played").iterdir())


def _named(file: Path, mark: str) -> Path:
    """Put this run's prefix before the names of the pod and of the volume: podman has no namespaces."""
    objects = list(yaml.safe_load_all(file.read_text()))
    deployment = objects[-1]
    deployment["metadata"]["name"] = f"{mark}-{deployment['metadata']['name']}"
    for volume in deployment["spec"]["template"]["spec"]["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            claim["claimName"] = f"{mark}-{claim['claimName']}"
    file.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return file


def _wait_until_ready(url: str, mark: str) -> None:
    deadline = time.monotonic() + _READY_S
    while subprocess.run(["curl", "-sf", f"{url}/health/ready"], capture_output=True).returncode:
        if time.monotonic() > deadline:
            names = ("engine-0", "engine-0-1", "engine-0-2", "frontend")
            logs = [podman("logs", "--tail", "5", f"{mark}-{name}-pod-0-service", check=False) for name in names]
            pytest.fail("The stack is not ready.\n" + "\n".join(logs))
        time.sleep(1)


def _address(mark: str, name: str) -> str:
    infra = podman("pod", "inspect", f"{mark}-{name}-pod-0", "-f", "{{.InfraContainerID}}").strip()
    (found,) = json.loads(podman("inspect", infra))
    address: str = found["NetworkSettings"]["Networks"][mark]["IPAddress"]
    return address


def test_two_pods_compute_one_model(url, mark):
    assert "Paris" in ask(url)
    assert _address(mark, "engine-0-1") != _address(mark, "engine-0-2")
    for rank in (1, 2):
        assert "sums.gloo" in podman("logs", f"{mark}-engine-0-{rank}-pod-0-service")


def test_a_rank_that_is_killed_is_replaced_and_the_next_answer_is_the_same(url, mark):
    before = ask(url)
    rank = f"{mark}-engine-0-2-pod-0-service"
    first = podman("inspect", rank, "-f", "{{.State.Pid}}")
    os.kill(int(first), signal.SIGKILL)

    assert ask(url) == before
    assert podman("inspect", rank, "-f", "{{.State.Pid}}") != first
