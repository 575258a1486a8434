"""The pods of overlay `cpu` under podman, as in docs/kubernetes.md: they answer, run without root, and survive a killed worker.

Run by `make kube-play-test`. Needs podman, and builds the images. The test removes all objects that it creates.
"""

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.kubernetes.manifests import DIRECTORY, KUBECTL, ROOT
from tests.kubernetes.page import PAGE
from tests.kubernetes.podman_pods import ask, free_port, imported, podman

PODS = ("frontend", "tokenizer", "engine-core", "worker")
BUILD = os.environ.get("TEST_BUILD", "podman build")
ANSWER = "The capital of France is Paris."
STATE = """
id -u; id -g
grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status
touch /opt/x 2>&1 || true
touch /tmp/x && echo written
"""


@pytest.fixture(scope="module")
def mark() -> str:
    """What keeps the names of this run apart from all others."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def models(smollm2, mark) -> Iterator[None]:
    """The claim's volume, with the model in it."""
    with imported(f"{mark}-models", smollm2.parents[2], smollm2):
        yield


@pytest.fixture(scope="module")
def url(models, mark, tmp_path_factory) -> Iterator[str]:
    """Run the page's commands, with a free port and names of this run; return where the frontend is."""
    work = tmp_path_factory.mktemp("play")
    shutil.copytree(DIRECTORY, work / "deploy/kubernetes")
    with (work / "deploy/kubernetes/overlays/cpu/kustomization.yaml").open("a") as overlay:
        overlay.write(f"namePrefix: {mark}-\n")  # podman has no namespaces
    port = free_port()
    block = PAGE.block("podman kube play").replace("8000", str(port))
    block = block.replace("podman build", BUILD).replace('" .\n', f'" {ROOT}\n')
    block = block.replace("network create tetrad", f"network create {mark}").replace('"tetrad:alias=', f'"{mark}:alias=')
    path = f"{KUBECTL.parent}:{os.environ['PATH']}"
    try:
        ran = subprocess.run(["bash", "-euc", block], cwd=work, env=os.environ | {"PATH": path}, timeout=3000)
        assert ran.returncode == 0, "\n".join(podman("logs", "--tail", "3", f"{mark}-{name}-pod-0-service") for name in PODS)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        for name in PODS:
            podman("pod", "rm", "-f", "-t", "2", f"{mark}-{name}-pod-0", check=False)
        podman("network", "rm", "-f", mark, check=False)


def test_they_answer(url):
    assert ask(url) == ANSWER


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_do_nothing_and_write_nowhere_but_to_its_volumes(url, mark, name):
    said = podman("exec", f"{mark}-{name}-pod-0-service", "sh", "-c", STATE).split("\n")

    assert said[:2] == ["10001", "10001"]
    assert [line.split() for line in said[2:5]] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"], ["Seccomp:", "2"]]
    assert "Read-only file system" in said[5]
    assert said[6] == "written"


@pytest.mark.parametrize("name", PODS)
def test_the_command_of_readiness_probes_finds_every_service_ready(url, mark, name):
    (service, port) = {
        "frontend": ("tetrad.v1.InferenceService", 50050),
        "tokenizer": ("tetrad.v1.TokenizerService", 50051),
        "engine-core": ("tetrad.v1.EngineCoreService", 50052),
        "worker": ("tetrad.v1.WorkerService", 50053),
    }[name]

    podman("exec", f"{mark}-{name}-pod-0-service", "python", "-m", "tetrad.readiness", f"127.0.0.1:{port}", service)


def test_only_the_frontend_is_open_to_this_machine_and_only_to_it(url, mark):
    opened = {}
    for name in PODS:
        (pod,) = json.loads(
            podman("inspect", podman("pod", "inspect", f"{mark}-{name}-pod-0", "-f", "{{.InfraContainerID}}").strip())
        )
        opened[name] = [host["HostIp"] for hosts in pod["NetworkSettings"]["Ports"].values() for host in hosts or []]

    assert opened == {"frontend": ["127.0.0.1"], "tokenizer": [], "engine-core": [], "worker": []}


def test_a_worker_that_is_killed_is_replaced_and_the_next_answer_is_the_same(url, mark):
    """The restart policy of a Deployment's pods is Always; the engine core keeps what waits meanwhile."""
    worker = f"{mark}-worker-pod-0-service"
    first = podman("inspect", worker, "-f", "{{.State.Pid}}")
    # Not `podman kill`: what its user ends podman leaves ended.
    os.kill(int(first), signal.SIGKILL)

    assert ask(url) == ANSWER
    assert podman("inspect", worker, "-f", "{{.State.Pid}}") != first
