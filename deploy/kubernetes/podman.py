"""Makes files for `podman kube play` of the manifests that `kubectl kustomize` writes: a try on a machine without a cluster.

    kubectl kustomize deploy/kubernetes/overlays/cpu | python deploy/kubernetes/podman.py DIRECTORY [PORT]

Writes one file for each pod into DIRECTORY, named by the pod's name in DNS (tokenizer.yaml, worker-0.worker.yaml): play it with
a network alias of that name. PORT: of this machine, for the frontend's HTTP. Pods keep their images, users, capabilities,
read-only file systems, volumes and settings. The script changes what podman (4.3) does not support: a StatefulSet becomes a
Deployment of its first pod; a LeaderWorkerSet becomes a Deployment for each pod of its first group; one replica of a Deployment
is left; variables that refer to others or to the pod get their values; probes and preStop are removed. podman ignores Services,
policies, budgets and autoscalers. Needs PyYAML.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_UNKNOWN = ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle")
_REFERENCE = re.compile(r"\$\((\w+)\)")
_FIELDS = {
    "metadata.labels['apps.kubernetes.io/pod-index']": "0",
    "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']": "0",
}
"""Fields of the first pod, and of the first group."""


@dataclass(frozen=True)
class Pod:
    """A pod: its name, its name in DNS, and its template."""

    name: str
    name_in_dns: str
    template: Object


def main(directory: Path, port: int | None = None) -> None:
    """Convert the manifests of stdin."""
    objects: list[Object] = list(yaml.safe_load_all(sys.stdin))
    directory.mkdir(parents=True, exist_ok=True)
    settings = [each for each in objects if each["kind"] == "ConfigMap"]
    for pod in (pod for workload in objects for pod in pods_of(workload)):
        played = [*settings, as_deployment(pod, port)]
        (directory / f"{pod.name_in_dns}.yaml").write_text(yaml.safe_dump_all(played, sort_keys=False))


def pods_of(workload: Object) -> Iterator[Pod]:
    """Yield the pods to play of an object; none if it is no workload."""
    name, spec = workload["metadata"]["name"], workload.get("spec", {})
    component = workload["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    if workload["kind"] == "StatefulSet":
        if spec.get("replicas", 1) > 1:
            sys.exit(f"podman.py: {name} has {spec['replicas']} replicas; podman can play one")
        # An engine core looks for its worker by the pod's name.
        yield Pod(name, "worker-0.worker" if component == "worker" else component, spec["template"])
    elif workload["kind"] == "Deployment":
        yield Pod(name, component, spec["template"])
    elif workload["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        yield Pod(f"{name}-0", "engine-core", group["leaderTemplate"])
        for number in range(1, group["size"]):
            yield Pod(f"{name}-0-{number}", f"{name}-0-{number}.{name}", group["workerTemplate"])


def as_deployment(pod: Pod, port: int | None) -> Object:
    """Return a pod as podman can play it."""
    containers = [
        {key: value for key, value in container.items() if key not in _UNKNOWN}
        | {"env": _with_values(container["env"], pod.name), "ports": _published(container["ports"], port)}
        for container in pod.template["spec"]["containers"]
    ]
    template = pod.template | {"spec": pod.template["spec"] | {"containers": containers}}
    labels = pod.template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pod.name, "labels": dict(labels)},
        "spec": {"replicas": 1, "selector": {"matchLabels": dict(labels)}, "template": template},
    }


def _with_values(variables: list[Object], pod_name: str) -> list[Object]:
    """Return variables without references to the pod or to variables before them."""
    known: dict[str, str] = {}
    resolved = []
    for variable in variables:
        if path := variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"):
            known[variable["name"]] = (_FIELDS | {"metadata.name": pod_name})[path]
        elif "value" in variable:
            value = _REFERENCE.sub(lambda found: known[found[1]], variable["value"])
            resolved.append({"name": variable["name"], "value": value})
        else:
            resolved.append(variable)
    return resolved


def _published(ports: list[Object], port: int | None) -> list[Object]:
    """Return the ports to open on this machine; podman would open all ports of a pod, on all addresses."""
    return [each | {"hostIP": "127.0.0.1", "hostPort": port} for each in ports if each["name"] == "http" and port is not None]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python podman.py DIRECTORY [PORT]")
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else None)
