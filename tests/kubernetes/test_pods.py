"""Pods: probes, termination, privileges and resources."""

import importlib.util
import re

import pytest

from tests.kubernetes.manifests import (
    OVERLAYS,
    ROOT,
    SETTINGS,
    components_of,
    container_of,
    of_kind,
    pods_of,
    ports_of,
    settings_of,
)
from tetrad.frontend.api.http.middleware.access import OPEN_PATHS
from tetrad.stack.service_names import HEALTH_NAMES

EVERY_POD = [(overlay, component) for overlay in OVERLAYS for component in SETTINGS]
every_pod = pytest.mark.parametrize(("overlay", "component"), EVERY_POD)
BEHIND = [(overlay, component) for overlay, component in EVERY_POD if component != "frontend"]
plain_grpc = pytest.mark.parametrize(("overlay", "component"), [each for each in BEHIND if "tls" not in components_of(each[0])])
behind_tls = pytest.mark.parametrize(("overlay", "component"), [each for each in BEHIND if "tls" in components_of(each[0])])
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
EXIT_S = 5
"""What a process may need to end behind its drain."""


def window_s(probe) -> int:
    """How long a probe may fail before something happens."""
    return probe["periodSeconds"] * probe["failureThreshold"]


@plain_grpc
def test_the_kubelet_asks_grpc_s_health(overlay, component):
    asked = {name: container_of(overlay, component)[name]["grpc"] for name in PROBES}

    port = ports_of(overlay, component)["grpc"]
    alive, ready = {"port": port, "service": ""}, {"port": port, "service": HEALTH_NAMES[component]}
    assert asked == {"startupProbe": alive, "livenessProbe": alive, "readinessProbe": ready}


@behind_tls
def test_behind_tls_the_kubelet_sees_the_port_and_readiness_is_asked_from_within(overlay, component):
    container, port = container_of(overlay, component), ports_of(overlay, component)["grpc"]

    assert container["startupProbe"]["tcpSocket"] == container["livenessProbe"]["tcpSocket"] == {"port": port}
    *python, module, address, service = container["readinessProbe"]["exec"]["command"]
    assert python == ["python", "-m"]
    assert importlib.util.find_spec(module) is not None
    assert address == f"127.0.0.1:{port}"
    assert service == HEALTH_NAMES[component]


@every_pod
def test_a_probe_asks_in_one_way(overlay, component):
    ways = {"grpc", "httpGet", "tcpSocket", "exec"}

    assert all(len(ways & set(container_of(overlay, component)[name])) == 1 for name in PROBES)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_frontend_is_asked_over_http_on_paths_that_need_no_key(overlay):
    asked = {name: container_of(overlay, "frontend")[name]["httpGet"] for name in PROBES}

    assert [asked[name]["path"] for name in PROBES] == ["/health/live", "/health/live", "/health/ready"]
    assert {each["path"] for each in asked.values()} <= set(OPEN_PATHS)
    assert {each["port"] for each in asked.values()} == {"http"}
    is_tls = settings_of(overlay, "frontend").public_tls is not None
    assert {each.get("scheme", "HTTP") for each in asked.values()} == {"HTTPS" if is_tls else "HTTP"}


@every_pod
def test_there_is_time_to_start(overlay, component):
    window = window_s(container_of(overlay, component)["startupProbe"])

    assert window >= {"frontend": 60, "tokenizer": 1800, "engine-core": 60, "worker": 3600}[component]
    loading = window_s(container_of(overlay, "worker")["startupProbe"])
    assert settings_of(overlay, "frontend").ready_timeout_s >= 2 * loading


@every_pod
def test_a_pod_that_stalls_ends_itself_before_the_kubelet_loses_patience(overlay, component):
    """The process knows more than the kubelet: it writes where it stands before it ends."""
    assert window_s(container_of(overlay, component)["livenessProbe"]) >= settings_of(overlay, component).loop_stall_timeout_s


@every_pod
def test_the_grace_period_fits_the_drain(overlay, component):
    settings, pod = settings_of(overlay, component), pods_of(overlay)[component]
    pre_stop = container_of(overlay, component).get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})

    needed = pre_stop["sleep"]["seconds"] + settings.withdrawal_wait_s + settings.drain_timeout_s + EXIT_S

    assert needed <= pod["terminationGracePeriodSeconds"] <= needed + 30


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_those_that_are_found_by_address_stay_until_it_is_withdrawn(overlay):
    sleeping = {component for component in SETTINGS if "lifecycle" in container_of(overlay, component)}

    assert sleeping == {"frontend", "tokenizer"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_requests_wait_longer_for_a_pod_than_it_takes_to_replace_one(overlay):
    engine_core = pods_of(overlay)["engine-core"]["terminationGracePeriodSeconds"]
    worker = pods_of(overlay)["worker"]["terminationGracePeriodSeconds"]

    assert settings_of(overlay, "frontend").recovery_timeout_s >= engine_core + 60
    assert settings_of(overlay, "engine-core").recovery_timeout_s >= worker + 300


@every_pod
def test_a_pod_may_do_nothing_that_it_does_not_need(overlay, component):
    """The rules of the standard `restricted`, and more."""
    pod, container = pods_of(overlay)[component], container_of(overlay, component)
    (user,) = re.findall(r"useradd .*--uid (\d+)", (ROOT / "Dockerfile").read_text())[:1]

    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(user),
        "fsGroup": int(user),
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "persistentVolumeClaim", "secret"}


@every_pod
def test_services_of_the_cluster_are_not_read_as_settings(overlay, component):
    """A Service `tetrad-frontend` would put TETRAD_FRONTEND_PORT=tcp://... into every environment."""
    assert pods_of(overlay)[component]["enableServiceLinks"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_gets_rights_in_the_cluster(overlay):
    assert not [kind for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding") if of_kind(overlay, kind)]
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def size_bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


@every_pod
def test_memory_fits_what_settings_allow(overlay, component):
    settings, resources = settings_of(overlay, component), container_of(overlay, component)["resources"]

    least = {
        "frontend": lambda: settings.max_total_body_bytes + (256 << 20),
        "tokenizer": lambda: settings.chat_template_memory_bytes + (256 << 20),
        "engine-core": lambda: 1 << 30,
        # Its weights, and what a step needs besides the KV cache.
        "worker": lambda: int((settings.kv_cache_memory_gib or 4) * (1 << 30)) + (1 << 30),
    }[component]()

    assert least <= size_bytes(resources["limits"]["memory"])
    assert size_bytes(resources["requests"]["memory"]) <= size_bytes(resources["limits"]["memory"])
    # The worker's threads are as many as its limit says; for the others a limit would only be a brake.
    assert ("cpu" in resources["limits"]) == (component == "worker")


@pytest.mark.parametrize("overlay", [overlay for overlay in OVERLAYS if "gpu" in components_of(overlay)])
def test_the_gpu_is_asked_for_and_there_is_room_to_share_memory(overlay):
    container, pod = container_of(overlay, "worker"), pods_of(overlay)["worker"]

    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    (name,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == name]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert {each["key"] for each in pod["tolerations"]} == {"nvidia.com/gpu"}
