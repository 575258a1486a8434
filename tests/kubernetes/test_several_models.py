"""The example of several models behind one frontend: valid, and the frontend reaches the services of both and nothing else."""

from itertools import product

import pytest

from tests.documents import Page
from tests.kubernetes import schemas
from tests.kubernetes.manifests import COMPONENT, DIRECTORY, Object, build, parsed
from tests.kubernetes.page import applied
from tests.kubernetes.test_network import Pod, may_talk
from tetrad.frontend.config import FrontendSettings

NAMESPACES = ("tetrad", "tetrad-reader")


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return parsed(build(DIRECTORY / "examples/several-models"))


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


def workloads(objects):
    return [*of_kind(objects, "Deployment"), *of_kind(objects, "StatefulSet")]


def pods(objects):
    return [
        Pod(labels[COMPONENT], each["metadata"]["namespace"], tuple(labels.items()))
        for each in workloads(objects)
        for labels in [each["spec"]["template"]["metadata"]["labels"]]
    ]


def variables(workload):
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


@pytest.fixture
def settings(objects) -> FrontendSettings:
    (frontend,) = [each for each in workloads(objects) if each["metadata"]["name"] == "frontend"]
    prefix = FrontendSettings.model_config["env_prefix"]
    values = {name.removeprefix(prefix).lower(): value for name, value in variables(frontend).items() if value is not None}
    return FrontendSettings(**values)


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
def test_every_object_fits_its_schema_and_is_there_once(objects, version):
    named = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]

    assert [problem for each in objects for problem in schemas.problems(version, each)] == []
    assert len(named) == len(set(named))
    assert {namespace for _, namespace, _ in named} == {None, *NAMESPACES}
    assert {name for kind, _, name in named if kind == "Namespace"} == set(NAMESPACES)


def test_each_model_has_services_of_its_own_and_the_frontend_is_common(objects):
    found = {namespace: {pod.name for pod in pods(objects) if pod.namespace == namespace} for namespace in NAMESPACES}
    models = {each["metadata"]["namespace"]: each["data"]["model"] for each in of_kind(objects, "ConfigMap")}

    assert found["tetrad-reader"] == {"tokenizer", "engine-core", "worker"}
    assert found["tetrad"] == found["tetrad-reader"] | {"frontend"}
    assert len(set(models.values())) == 2


def test_the_frontend_looks_for_each_model_where_its_services_are(objects, settings):
    ports = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): {port["port"] for port in each["spec"]["ports"]}
        for each in of_kind(objects, "Service")
    }
    models = [settings, *settings.further_models]

    found = []
    for model, own in zip(models, NAMESPACES, strict=True):
        for target in (*model.tokenizer_targets, *model.engine_targets, *model.engine_admin_targets):
            host, _, port = target.removeprefix("dns:///").partition(":")
            service, _, namespace = host.partition(".")
            found.append((namespace or "tetrad", int(port)))
            assert int(port) in ports[namespace or "tetrad", service]
            assert (namespace or "tetrad") == own
    assert len(found) == 6


def test_of_the_other_model_the_frontend_alone_reaches_what_it_needs(objects):
    policies = of_kind(objects, "NetworkPolicy")
    across = {
        (source.name, source.namespace, target.name): ports
        for source, target in product(pods(objects), pods(objects))
        if source.namespace != target.namespace
        and (ports := {port for port in (50050, 50051, 50052, 50053, 50054, 9464) if may_talk(policies, source, target, port)})
    }

    # The frontend's own port is open to everybody, but the other model's pods may not leave their namespace for it.
    assert across == {
        ("frontend", "tetrad", "tokenizer"): {50051},
        ("frontend", "tetrad", "engine-core"): {50052, 50054},
    }


def test_the_page_applies_the_example_and_waits_for_what_it_has(run, objects):
    calls = run(Page.of("docs/several-models.md").block("kubectl"))

    deployments = [each["metadata"] for each in of_kind(objects, "Deployment")]
    known = {(each["namespace"], f"deployment/{each['name']}") for each in deployments}
    waited = {(call.arguments[1], call.arguments[4]) for call in calls if "rollout" in call.arguments}
    assert applied(calls) == objects
    assert waited and waited <= known
