"""Every overlay is valid for Kubernetes, and its parts name each other correctly."""

import copy

import pytest

from tests.kubernetes import schemas
from tests.kubernetes.manifests import (
    COMBINED,
    COMPONENT,
    OVERLAYS,
    SHIPPED,
    components_of,
    objects_of,
    of_kind,
    one,
    pod_templates,
    pods_of,
    selects,
    settings_of,
)
from tetrad.v1 import inference_pb2

WITH_GATEWAY = [overlay for overlay in OVERLAYS if "gateway-api" in components_of(overlay)]


def test_the_overlays_are_there():
    assert SHIPPED == ["cpu", "gateway-api", "gpu", "leaderworkerset", "scale", "tensor-parallel", "tls"]
    assert len(components_of(COMBINED)) >= 6


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_fits_its_schema(overlay, version):
    assert [problem for each in objects_of(overlay) for problem in schemas.problems(version, each)] == []


def test_what_does_not_fit_is_found():
    deployment = copy.deepcopy(one("cpu", "Deployment", "frontend"))
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["perodSeconds"] = 3
    route = copy.deepcopy(one("gateway-api", "HTTPRoute", "frontend"))
    route["spec"]["rules"][0]["backendRefs"][0]["port"] = "http"

    assert schemas.problems(schemas.NEWEST, deployment)
    assert schemas.problems(schemas.NEWEST, route)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_two_objects_have_the_same_name_and_all_are_in_the_namespace(overlay):
    named = [(each["kind"], each["metadata"]["name"]) for each in objects_of(overlay)]

    assert len(named) == len(set(named))
    assert {each["metadata"].get("namespace") for each in objects_of(overlay)} == {None, "tetrad"}
    assert [kind for kind, _ in named if kind == "Namespace"] == ["Namespace"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_matches_the_pods_that_it_is_made_for(overlay):
    labels = {component: template["metadata"]["labels"] for component, template in pod_templates(overlay)}
    assert set(labels) == {"frontend", "tokenizer", "engine-core", "worker"}

    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
        for each in of_kind(overlay, kind):
            selector = each["spec"]["selector"]
            selector = {"matchLabels": selector} if kind == "Service" else selector
            assert [name for name in labels if selects(selector, labels[name])] == [each["metadata"]["name"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_labels_that_place_pods_are_those_of_pods(overlay):
    labels = [template["metadata"]["labels"] for _, template in pod_templates(overlay)]

    selectors = []
    for pod in pods_of(overlay).values():
        selectors += [each["labelSelector"] for each in pod.get("topologySpreadConstraints", [])]
        terms = pod.get("affinity", {}).get("podAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
        selectors += [each["podAffinityTerm"]["labelSelector"] for each in terms]

    assert len(selectors) >= 3
    assert all(sum(selects(selector, each) for each in labels) == 1 for selector in selectors)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_lead_to_ports_that_their_pods_have(overlay):
    for service in of_kind(overlay, "Service"):
        (container,) = pods_of(overlay)[service["metadata"]["name"]]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}

        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_of_pods_can_be_looked_up(overlay):
    """A StatefulSet's pods have names in DNS if its Service is headless; a group's Service is LeaderWorkerSet's own."""
    for each in of_kind(overlay, "StatefulSet"):
        service = one(overlay, "Service", each["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"], "the one that makes a worker ready must find it before it is"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_volumes_are_there_for_every_mount_and_claims_for_every_volume(overlay):
    claims = {each["metadata"]["name"] for each in of_kind(overlay, "PersistentVolumeClaim")}

    for pod in pods_of(overlay).values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert {
            each["persistentVolumeClaim"]["claimName"] for each in volumes.values() if "persistentVolumeClaim" in each
        } <= claims


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_on_several_nodes_share_a_volume_that_allows_it(overlay):
    on_several_nodes = components_of(overlay) & {"autoscaling", "gpu", "leaderworkerset"}

    modes = one(overlay, "PersistentVolumeClaim", "models")["spec"]["accessModes"]

    assert modes == (["ReadWriteMany"] if on_several_nodes else ["ReadWriteOnce"])


@pytest.mark.parametrize("overlay", [each for each in OVERLAYS if "leaderworkerset" not in components_of(each)])
def test_as_many_workers_as_engine_cores(overlay):
    numbers = {name: one(overlay, "StatefulSet", name)["spec"].get("replicas") for name in ("engine-core", "worker")}

    assert numbers["engine-core"] == numbers["worker"]


def test_a_group_is_an_engine_core_and_its_worker():
    (group,) = of_kind("leaderworkerset", "LeaderWorkerSet")
    templates = group["spec"]["leaderWorkerTemplate"]

    assert templates["size"] == 2
    assert templates["leaderTemplate"]["metadata"]["labels"][COMPONENT] == "engine-core"
    assert templates["workerTemplate"]["metadata"]["labels"][COMPONENT] == "worker"
    assert of_kind("leaderworkerset", "StatefulSet") == []


def test_a_group_of_ranks_is_an_engine_core_and_as_many_workers():
    (group,) = of_kind("tensor-parallel", "LeaderWorkerSet")
    templates = group["spec"]["leaderWorkerTemplate"]

    assert templates["size"] == 1 + settings_of("tensor-parallel", "engine-core").tensor_parallel_size == 3
    assert templates["leaderTemplate"]["metadata"]["labels"][COMPONENT] == "engine-core"
    assert templates["workerTemplate"]["metadata"]["labels"][COMPONENT] == "worker"
    # One that is lost comes back alone, and its group meets again; one group at a time is replaced, while others serve.
    assert templates["restartPolicy"] == "None"
    assert group["spec"]["replicas"] > group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["maxUnavailable"] == 1


def test_what_only_names_the_ranks_is_not_applied():
    assert "ranks" not in {each["metadata"]["name"] for each in of_kind("tensor-parallel", "ConfigMap")}


@pytest.mark.parametrize("overlay", WITH_GATEWAY)
def test_routes_lead_to_ports_of_the_frontend(overlay):
    ports = {port["port"] for port in one(overlay, "Service", "frontend")["spec"]["ports"]}
    listeners = {each["name"] for each in one(overlay, "Gateway", "tetrad")["spec"]["listeners"]}

    for kind, port in (("HTTPRoute", 8000), ("GRPCRoute", 50050)):
        spec = one(overlay, kind, "frontend")["spec"]
        assert {parent["sectionName"] for parent in spec["parentRefs"]} <= listeners
        assert {backend["port"] for rule in spec["rules"] for backend in rule["backendRefs"]} == {port}
        assert port in ports


def test_routes_are_made_for_what_the_frontend_serves():
    (rule,) = one("gateway-api", "GRPCRoute", "frontend")["spec"]["rules"]
    served = {"grpc.health.v1.Health", *(service.full_name for service in inference_pb2.DESCRIPTOR.services_by_name.values())}
    (web,) = one("gateway-api", "HTTPRoute", "frontend")["spec"]["rules"]

    assert {match["method"]["service"] for match in rule["matches"]} == served
    assert {match["path"]["value"] for match in web["matches"]} == {"/v1", "/health"}
