"""The Helm chart of docs/kubernetes.md, rendered by Helm, equals the base; each value changes the fields of its name."""

import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.kubernetes import schemas
from tests.kubernetes.manifests import DIRECTORY, ROOT, Object, build, objects_of, parsed
from tests.kubernetes.page import PAGE

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is missing: make setup installs it")

CHART = ROOT / "deploy/helm/tetrad"
SERVICES = ("frontend", "tokenizer", "engine-core", "worker")
GPU = yaml.safe_load((ROOT / "deploy/helm/gpu.yaml").read_text())
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
CHANGED = {
    "model": "org/model",
    "image": {
        "registry": "registry.example.com/team",
        "tag": "1.2.3",
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "login"}],
    },
    "hfToken": {"existingSecret": "account", "key": "read"},
    "engines": 4,
    "models": {"size": "50Gi", "accessMode": "ReadWriteMany", "storageClass": "fast"},
    "frontend": {"replicas": 3, "digest": DIGEST},
    "worker": {
        "resources": {"limits": {"cpu": "16", "memory": "64Gi"}, "requests": {"memory": "32Gi"}},
        "kvCacheMemoryGib": 24.5,
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
    },
}


def render(values: dict[str, Any]) -> list[Object]:
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values, name="tetrad", namespace="tetrad")
    return [each for name, text in files.items() if name.endswith(".yaml") for each in parsed(text)]


def normal(value: Any) -> Any:
    """Return objects without what a chart cannot have of the base, or a base of the chart; lists of named entries in order."""
    if isinstance(value, dict):
        if "configMapKeyRef" in value:
            return {"configMapKeyRef": value["configMapKeyRef"] | {"name": "settings"}}
        return {key: normal(each) for key, each in value.items() if key != "annotations"}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return sorted(map(normal, value), key=lambda each: each["name"])
    return [normal(each) for each in value] if isinstance(value, list) else value


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Return the objects by kind and name; the base's ConfigMap is named by its content."""
    named = {}
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["metadata"]["name"] = "settings"
        if each["kind"] != "Namespace":
            named[each["kind"], each["metadata"]["name"]] = normal(each)
    return named


def image_of(workload: Object) -> str:
    return workload["template"]["spec"]["containers"][0]["image"]


def workload(objects: list[Object], name: str) -> Object:
    [found] = [each for each in objects if each["metadata"]["name"] == name and "template" in each.get("spec", {})]
    return found["spec"]


def test_the_generated_files_are_those_of_the_base(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools/helm_chart.py", "--out", tmp_path], check=True)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    by_hand = {CHART / "values.schema.json", CHART / "templates/NOTES.txt"}

    kept = {path.relative_to(CHART): path.read_text() for path in CHART.rglob("*") if path.is_file() and path not in by_hand}

    assert kept == written, "run make helm-chart"


def test_without_values_it_is_the_base():
    assert by_name(render({})) == by_name(parsed(build(DIRECTORY / "base")))


def test_with_the_values_for_gpus_it_is_the_overlay_for_gpus():
    overlay = parsed(yaml.dump_all(objects_of("gpu"), Dumper=yaml.CSafeDumper))

    assert by_name(render(GPU)) == by_name(list(overlay))


def test_values_change_what_they_name():
    objects = render(CHANGED)
    frontend, engine_core, worker = (workload(objects, name) for name in ("frontend", "engine-core", "worker"))
    [volume] = [each["spec"] for each in objects if each["kind"] == "PersistentVolumeClaim"]
    [settings] = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    pod = worker["template"]["spec"]
    [container] = pod["containers"]

    assert settings == {"model": "org/model"}
    assert (frontend["replicas"], engine_core["replicas"], worker["replicas"]) == (3, 4, 4)
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example.com/team/tetrad-worker:1.2.3", "Always")
    assert image_of(frontend) == f"registry.example.com/team/tetrad-frontend@{DIGEST}"
    assert container["resources"] == CHANGED["worker"]["resources"] | {"requests": {"cpu": "2", "memory": "32Gi"}}
    assert {"name": "TETRAD_WORKER_KV_CACHE_MEMORY_GIB", "value": "24.5"} in container["env"]
    assert (pod["imagePullSecrets"], pod["nodeSelector"]) == ([{"name": "login"}], {"kubernetes.io/arch": "amd64"})
    assert volume == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "50Gi"}},
        "storageClassName": "fast",
    }


def test_the_token_of_a_secret_is_for_the_services_that_download_models():
    objects = render({"hfToken": {"existingSecret": "account"}})
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "account", "key": "token"}}}

    variables = {name: workload(objects, name)["template"]["spec"]["containers"][0]["env"] for name in SERVICES}

    assert [name for name, its in variables.items() if token in its] == ["tokenizer", "worker"]


def test_another_model_rolls_the_pods():
    """The environment has the model by the name of its ConfigMap, which stays."""
    before, after = (workload(render(values), "tokenizer")["template"] for values in ({}, {"model": "org/model"}))

    assert before["spec"] == after["spec"]
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]


@pytest.mark.parametrize("values", [{}, GPU, CHANGED], ids=["default", "gpu", "changed"])
@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
def test_its_objects_are_valid(values, version):
    assert [problem for each in render(values) for problem in schemas.problems(version, each)] == []


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"engines": 0}, "/engines"),
        ({"engine": 2}, "engine"),
        ({"worker": {"kvCacheMemoryGib": "2Gi"}}, "/worker/kvCacheMemoryGib"),
        ({"image": {"registry": "registry.example.com/team/"}}, "/image/registry"),
        ({"image": {"tag": "1.2.3 "}}, "/image/tag"),
        ({"worker": {"digest": "sha256:1"}}, "/worker/digest"),
        ({"hfToken": {"existingSecret": "My Account"}}, "/hfToken/existingSecret"),
        ({"models": {"size": "twenty"}}, "/models/size"),
        ({"models": {"accessMode": "ReadWriteOncePod"}}, "/models/accessMode"),  # tokenizers and workers mount it
        ({"worker": {"replicas": 2}}, "replicas"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values, word):
    with pytest.raises(helm.HelmError, match=word):
        render(values)


def test_helm_finds_nothing_to_complain_about():
    found = helm.lint(CHART)

    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]
    assert found["errors"] == []


def test_the_page_installs_the_chart_with_values_that_it_has():
    program, command, name, directory, *options = shlex.split(PAGE.block("helm install").replace("\\\n", ""))
    namespace = options[options.index("--namespace") + 1]
    values = helm.parse_set_string(options[options.index("--set") + 1])

    assert (program, command, name, ROOT / directory) == ("helm", "install", "tetrad", CHART)
    assert {each["metadata"]["namespace"] for each in render(values) if "namespace" in each["metadata"]} == {namespace}
    assert workload(render(values), "frontend")["replicas"] == values["frontend"]["replicas"]
