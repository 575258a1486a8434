"""Autoscalers and monitors name things that exist: workloads, metrics that are exported, ports, labels."""

import re
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from tests.kubernetes.manifests import COMPONENT, container_of, objects_of, of_kind, one, selects
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.sessions import Sessions

SCALERS = [*of_kind("scale", "HorizontalPodAutoscaler"), *of_kind("scale", "ScaledObject")]
QUERIES = [
    trigger["metadata"]
    for each in of_kind("scale", "ScaledObject")
    for trigger in each["spec"]["triggers"]
    if trigger["type"] == "prometheus"
]


def test_every_workload_has_one_autoscaler():
    targets = [
        (each["spec"]["scaleTargetRef"]["kind"], each["spec"]["scaleTargetRef"]["name"], each["metadata"]["name"])
        for each in SCALERS
    ]

    workloads = [each for each in objects_of("scale") if each["kind"] in ("Deployment", "StatefulSet")]
    assert sorted(targets) == sorted((each["kind"], each["metadata"]["name"], each["metadata"]["name"]) for each in workloads)


def test_applying_the_manifests_again_leaves_the_number_of_pods_alone():
    assert not [
        each for each in objects_of("scale") if each["kind"] in ("Deployment", "StatefulSet") and "replicas" in each["spec"]
    ]


@pytest.mark.parametrize("each", SCALERS, ids=lambda each: each["metadata"]["name"])
def test_there_are_two_of_each_at_least(each):
    spec = each["spec"]

    assert spec.get("minReplicas", spec.get("minReplicaCount")) == 2
    assert spec.get("maxReplicas", spec.get("maxReplicaCount")) > 2


class Engine:
    """What an engine core shows of itself."""

    scheduler = Scheduler(SchedulerLimits(), KVCacheManager(16, 16))
    sessions = Sessions()
    sleeper = SimpleNamespace(level=0, is_asleep=False)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query["query"])
def test_engine_cores_follow_metrics_that_they_export(query):
    (metric,) = re.findall(r"[a-z]+:\w+", query["query"])
    metrics = EngineMetrics()
    metrics.watch(Engine())

    exported = generate_latest(metrics.registry).decode()

    assert re.search(rf"^{metric}[{{ ]", exported, re.MULTILINE)
    assert float(query["threshold"]) > 0


def test_the_metrics_are_waiting_requests_and_kv_usage():
    assert [query["query"].partition("{")[0] for query in QUERIES] == [
        "sum(tetrad:engine_requests_waiting",
        "avg(tetrad:engine_kv_usage",
    ]


def test_utilization_is_of_what_pods_ask_for():
    """A share of nothing is no number: the pod must ask for CPU."""
    for each in of_kind("scale", "HorizontalPodAutoscaler"):
        assert {metric["resource"]["name"] for metric in each["spec"]["metrics"]} == {"cpu"}
        assert "cpu" in container_of("scale", each["metadata"]["name"])["resources"]["requests"]


def test_there_are_as_many_workers_as_engine_cores():
    engine_core, worker = one("scale", "ScaledObject", "engine-core")["spec"], one("scale", "ScaledObject", "worker")["spec"]

    (trigger,) = worker["triggers"]
    selector = {"matchLabels": dict(part.split("=") for part in trigger["metadata"]["podSelector"].split(","))}
    labels = one("scale", "StatefulSet", "engine-core")["spec"]["template"]["metadata"]["labels"]
    assert trigger["type"] == "kubernetes-workload"
    assert trigger["metadata"]["value"] == "1"
    assert selects(selector, labels)
    for limit in ("minReplicaCount", "maxReplicaCount"):
        assert worker[limit] == engine_core[limit]


def test_every_service_is_scraped_on_its_metrics_port():
    services = {each["metadata"]["labels"][COMPONENT]: each for each in of_kind("scale", "Service")}

    scraped = {}
    for monitor in of_kind("scale", "ServiceMonitor"):
        (found,) = [name for name, each in services.items() if selects(monitor["spec"]["selector"], each["metadata"]["labels"])]
        (endpoint,) = monitor["spec"]["endpoints"]
        scraped[found] = {port["name"]: port["port"] for port in services[found]["spec"]["ports"]}[endpoint["port"]]

    assert scraped == dict.fromkeys(services, 9464)
