"""deploy/kubernetes/podman.py: pods for `podman kube play` equal the cluster's, as far as podman supports them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.manifests import DIRECTORY, SETTINGS, Object, one, parsed, pods_of, render, variables_of

FILES = {"frontend": "frontend", "tokenizer": "tokenizer", "engine-core": "engine-core", "worker-0.worker": "worker"}


def convert(overlay_text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, DIRECTORY / "podman.py", *arguments]
    return subprocess.run(call, input=overlay_text, capture_output=True, text=True, timeout=30)


@pytest.fixture
def played(tmp_path) -> dict[str, list[Object]]:
    """What the overlay `cpu` becomes, HTTP at 8123: file -> objects."""
    ran = convert(render("cpu"), str(tmp_path), "8123")
    assert ran.returncode == 0, ran.stderr
    return {path.stem: parsed(path.read_text()) for path in sorted(Path(tmp_path).iterdir())}


def test_every_workload_is_a_file_named_as_others_look_for_it(played):
    assert set(played) == set(FILES)
    assert [each["kind"] for objects in played.values() for each in objects] == ["ConfigMap", "Deployment"] * len(FILES)
    for component, setting in (
        ("frontend", "TOKENIZER_TARGETS"),
        ("frontend", "ENGINE_TARGETS"),
        ("engine-core", "WORKER_TARGET"),
    ):
        target = variables_of("cpu", component)[f"TETRAD_{component.upper().replace('-', '_')}_{setting}"]
        assert target.removeprefix("dns:///").partition(":")[0] in played


def test_pods_stay_as_they_are_but_for_what_podman_does_not_know(played):
    for file, component in FILES.items():
        (played_pod,) = [each["spec"]["template"]["spec"] for each in played[file] if each["kind"] == "Deployment"]
        pod = pods_of("cpu")[component]

        assert {key: value for key, value in played_pod.items() if key != "containers"} == {
            key: value for key, value in pod.items() if key != "containers"
        }
        (container,), (original,) = played_pod["containers"], pod["containers"]
        changed = {key for key in original if container.get(key) != original[key]}
        assert changed <= {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "ports", "env"}


def test_variables_have_the_values_that_the_kubelet_would_give_them(played):
    model = one("cpu", "ConfigMap", played["frontend"][0]["metadata"]["name"])["data"]["model"]
    for file, component in FILES.items():
        (container,) = played[file][1]["spec"]["template"]["spec"]["containers"]
        values = {each["name"]: each.get("value", model) for each in container["env"]}

        expected = variables_of("cpu", component)
        expected.pop("POD_INDEX", None)
        assert values == expected


def test_one_port_of_this_machine_is_opened_and_to_this_machine_only(played):
    opened = [
        port
        for objects in played.values()
        for container in objects[1]["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    ]

    assert opened == [{"name": "http", "containerPort": 8000, "hostIP": "127.0.0.1", "hostPort": 8123}]


def test_what_podman_cannot_play_is_refused_in_one_line(tmp_path):
    """Podman would start all of a StatefulSet's pods with the number of the first."""
    two = render("cpu").replace(
        "  podManagementPolicy: Parallel\n  replicas: 1", "  podManagementPolicy: Parallel\n  replicas: 2"
    )

    ran = convert(two, str(tmp_path))

    assert ran.returncode == 1
    assert ran.stderr == "podman.py: engine-core has 2 replicas; podman can play one\n"
    assert set(SETTINGS) == set(FILES.values())
