"""The example of disaggregated prefill: valid, with the roles and addresses that it needs, and no further edges."""

import re
from fnmatch import fnmatchcase
from itertools import product

import pytest

from tests.documents import Page
from tests.kubernetes import schemas
from tests.kubernetes.manifests import DIRECTORY, Object, build, parsed
from tests.kubernetes.page import applied
from tests.kubernetes.test_network import may_talk
from tests.kubernetes.test_several_models import of_kind, pods, variables, workloads
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings

NAMESPACES = ("tetrad", "tetrad-prefill")
PORTS = (50050, 50051, 50052, 50053, 50054, 9464)


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return parsed(build(DIRECTORY / "examples/disaggregated"))


def settings_of(objects, kind, name, namespace, *, pod_index=0):
    """Return what a pod's process makes of its environment."""
    [workload] = [
        each for each in workloads(objects) if (each["metadata"]["name"], each["metadata"]["namespace"]) == (name, namespace)
    ]
    prefix = kind.model_config["env_prefix"]
    given = {key: value for key, value in variables(workload).items() if value is not None and key.startswith(prefix)}
    index = str(pod_index)
    return kind(**{key.removeprefix(prefix).lower(): value.replace("$(POD_INDEX)", index) for key, value in given.items()})


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
def test_every_object_fits_its_schema_and_is_there_once(objects, version):
    named = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]

    assert [problem for each in objects for problem in schemas.problems(version, each)] == []
    assert len(named) == len(set(named))
    assert {name for kind, _, name in named if kind == "Namespace"} == set(NAMESPACES)


def test_both_namespaces_have_the_same_model_and_the_frontend_is_common(objects):
    found = {namespace: {pod.name for pod in pods(objects) if pod.namespace == namespace} for namespace in NAMESPACES}
    models = {each["data"]["model"] for each in of_kind(objects, "ConfigMap")}

    assert found["tetrad-prefill"] == {"tokenizer", "engine-core", "worker"}
    assert found["tetrad"] == found["tetrad-prefill"] | {"frontend"}
    assert len(models) == 1


def test_the_frontend_looks_for_the_engine_cores_of_both(objects):
    settings = settings_of(objects, FrontendSettings, "frontend", "tetrad")

    assert list(settings.engine_targets) == ["dns:///engine-core:50052", "dns:///engine-core.tetrad-prefill:50052"]
    assert [target.replace(":50052", ":50054") for target in settings.engine_targets] == list(settings.engine_admin_targets)


@pytest.mark.parametrize("pod_index", [0, 1, 12])
def test_consumers_may_read_from_the_workers_of_producers_and_ranks_differ(objects, pod_index):
    consumer = settings_of(objects, EngineCoreSettings, "engine-core", "tetrad", pod_index=pod_index)
    producer = settings_of(objects, EngineCoreSettings, "engine-core", "tetrad-prefill", pod_index=pod_index)
    host, port = producer.kv_host_and_port

    assert (consumer.kv_role, producer.kv_role) == ("consumer", "producer")
    assert (host, port) == (f"worker-{pod_index}.worker.tetrad-prefill.svc", 50053)
    assert any(fnmatchcase(f"{host}:{port}", peer) for peer in consumer.kv_peers)
    assert consumer.data_parallel_rank == pod_index
    assert producer.data_parallel_rank >= 1000


def test_variables_stand_before_those_that_use_them(objects):
    for workload in workloads(objects):
        known = set()
        for name, value in variables(workload).items():
            assert set(re.findall(r"\$\((\w+)\)", value or "")) <= known, name
            known.add(name)


def test_between_the_namespaces_only_what_the_split_needs_is_allowed(objects):
    policies = of_kind(objects, "NetworkPolicy")
    across = {
        (source.name, target.name): ports
        for source, target in product(pods(objects), pods(objects))
        if source.namespace != target.namespace
        and (ports := {port for port in PORTS if may_talk(policies, source, target, port)})
    }

    assert across == {("frontend", "engine-core"): {50052, 50054}, ("worker", "worker"): {50053}}


def test_the_page_applies_the_example(run, objects):
    calls = run(Page.of("docs/disaggregation.md").block("kubectl"))

    assert applied(calls) == objects
