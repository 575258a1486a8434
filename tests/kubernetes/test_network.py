"""Allowed connections, computed from the NetworkPolicies and compared with the architecture's edges."""

import ipaddress
from dataclasses import dataclass
from itertools import product

import pytest

from tests.kubernetes.manifests import (
    COMPONENT,
    OVERLAYS,
    SETTINGS,
    Object,
    components_of,
    of_kind,
    pod_templates,
    ports_of,
    selects,
)


@dataclass(frozen=True)
class Pod:
    """Who talks or is talked to."""

    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    address: str = "10.1.2.3"


CLIENT = Pod("client", "default", (("app", "chat"),))
INTRUDER = Pod("intruder", "tetrad", (("app", "something-else"),))
OPERATOR = Pod("operator", "tetrad", (("app.kubernetes.io/name", "tetrad"), (COMPONENT, "operator")))
PROMETHEUS = Pod("prometheus", "monitoring", (("app.kubernetes.io/name", "prometheus"),))
COLLECTOR = Pod("collector", "monitoring", (("app.kubernetes.io/name", "opentelemetry-collector"),))
IMPOSTOR = Pod("impostor", "default", (("app.kubernetes.io/name", "prometheus"),))
DNS = Pod("dns", "kube-system", (("k8s-app", "kube-dns"),))
INTERNET = Pod("internet", "", address="93.184.216.34")
PRIVATE = Pod("private network", "", address="10.99.0.1")

EDGES = {
    ("client", "frontend"): {8000, 50050},
    ("impostor", "frontend"): {8000, 50050},
    ("collector", "frontend"): {8000, 50050},
    ("prometheus", "frontend"): {8000, 50050},
    ("internet", "frontend"): {8000, 50050},
    ("private network", "frontend"): {8000, 50050},
    ("dns", "frontend"): {8000, 50050},
    ("frontend", "tokenizer"): {50051},
    ("frontend", "engine-core"): {50052, 50054},
    ("engine-core", "tokenizer"): {50051},
    ("engine-core", "worker"): {50053},
    ("operator", "engine-core"): {50054},
    ("tokenizer", "internet"): {443},
    ("worker", "internet"): {443},
    **{(name, "dns"): {53} for name in ("frontend", "tokenizer", "engine-core", "worker", "operator")},
}
"""Everything that is allowed; what is not here is not."""
TRACES = {(component, "collector"): {4317} for component in SETTINGS}
SCRAPES = {("prometheus", component): {9464} for component in SETTINGS}


def may_talk(policies: list[Object], source: Pod, target: Pod, port: int) -> bool:
    return _allowed(policies, "egress", source, target, port) and _allowed(policies, "ingress", target, source, port)


def _allowed(policies: list[Object], direction: str, pod: Pod, peer: Pod, port: int) -> bool:
    """Whether a pod's policies let a peer through: all is allowed to a pod that no policy is about."""
    about = [
        each["spec"]
        for each in policies
        if each["metadata"]["namespace"] == pod.namespace
        and direction.capitalize() in each["spec"]["policyTypes"]
        and selects(each["spec"]["podSelector"], dict(pod.labels))
    ]
    return not about or any(
        _rule_allows(rule, direction, pod, peer, port) for spec in about for rule in spec.get(direction, [])
    )


def _rule_allows(rule: Object, direction: str, pod: Pod, peer: Pod, port: int) -> bool:
    peers = rule.get({"ingress": "from", "egress": "to"}[direction])
    ports = {each["port"] for each in rule["ports"]} if "ports" in rule else {port}
    return port in ports and (peers is None or any(_is(peer, each, pod.namespace) for each in peers))


def _is(peer: Pod, rule: Object, own: str) -> bool:
    if "ipBlock" in rule:
        block, address = rule["ipBlock"], ipaddress.ip_address(peer.address)
        inside = [address in ipaddress.ip_network(cidr) for cidr in block.get("except", [])]
        return address in ipaddress.ip_network(block["cidr"]) and not any(inside)
    namespace = {"kubernetes.io/metadata.name": peer.namespace}
    own_namespace = peer.namespace == own
    in_namespace = selects(rule["namespaceSelector"], namespace) if "namespaceSelector" in rule else own_namespace
    return bool(peer.namespace) and in_namespace and selects(rule.get("podSelector", {}), dict(peer.labels))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_edges_are_the_architecture_s_and_no_others(overlay):
    ours = [
        Pod(component, "tetrad", tuple(template["metadata"]["labels"].items()))
        for component, template in pod_templates(overlay)
    ]
    pods = [*ours, CLIENT, INTRUDER, OPERATOR, PROMETHEUS, COLLECTOR, IMPOSTOR, DNS, INTERNET, PRIVATE]
    ports = {port for component in SETTINGS for port in ports_of(overlay, component).values()} | {22, 53, 80, 443, 4317}
    policies = of_kind(overlay, "NetworkPolicy")

    found: dict[tuple[str, str], set[int]] = {}
    for source, target in product(pods, pods):
        if "tetrad" in (source.namespace, target.namespace) and source is not target:
            allowed = {port for port in ports if may_talk(policies, source, target, port)}
            found |= {(source.name, target.name): allowed} if allowed else {}

    expected = dict(EDGES)
    if "monitoring" in components_of(overlay):
        for edge, scraped in SCRAPES.items():
            expected[edge] = expected.get(edge, set()) | scraped
    if "tracing" in components_of(overlay):
        expected |= TRACES
    assert found == expected


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_reach_each_other_where_they_are_ranks_of_a_group(overlay):
    """At the port where they meet, and at those that they choose; anything else of theirs stays as it is."""
    labels = tuple(dict(pod_templates(overlay))["worker"]["metadata"]["labels"].items())
    one, other = (Pod(f"worker-{number}", "tetrad", labels) for number in range(2))
    policies = of_kind(overlay, "NetworkPolicy")

    reached = {port for port in (50053, 50153, 40_000) if may_talk(policies, one, other, port)}

    assert reached == ({50053, 50153, 40_000} if "tensor-parallel" in components_of(overlay) else set())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_port_of_a_policy_is_one_that_a_pod_has(overlay):
    known = {port for component in SETTINGS for port in ports_of(overlay, component).values()} | {53, 443, 4317}

    for policy in of_kind(overlay, "NetworkPolicy"):
        rules = [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]
        assert {port["port"] for rule in rules for port in rule.get("ports", [])} <= known


def test_a_gateway_whose_pods_are_here_is_open_to_the_world_and_reaches_frontends_alone():
    """Istio and others put them beside the Gateway; their label is GEP-1762's."""
    gateway = Pod("gateway", "tetrad", (("gateway.networking.k8s.io/gateway-name", "tetrad"),))
    policies = of_kind("gateway-api", "NetworkPolicy")
    pods = {
        component: Pod(component, "tetrad", tuple(template["metadata"]["labels"].items()))
        for component, template in pod_templates("gateway-api")
    }

    reached = {
        name for name, pod in pods.items() for port in (8000, 50050, 50051, 50052) if may_talk(policies, gateway, pod, port)
    }

    assert may_talk(policies, INTERNET, gateway, 443)
    assert reached == {"frontend"}
