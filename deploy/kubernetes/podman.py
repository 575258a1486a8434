"""Makes files for `podman kube play` of the manifests that `kubectl kustomize` writes: a try on a machine without a cluster.

    kubectl kustomize deploy/kubernetes/overlays/cpu | python deploy/kubernetes/podman.py DIRECTORY [PORT]

Writes one file a workload into DIRECTORY, named by the name under which the others look for it (tokenizer.yaml,
worker-0.worker.yaml): play it with a network alias of that name. PORT: of this machine, for the frontend's HTTP.
Pods stay as they are: images, users, capabilities, read-only file systems, volumes, settings. What podman (4.3) does not know
is put in its terms: a StatefulSet becomes a Deployment of its first pod, variables that are made of others get their values,
probes and preStop go. podman ignores Services, policies, budgets and autoscalers. Needs PyYAML.
"""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_UNKNOWN = ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle")
_REFERENCE = re.compile(r"\$\((\w+)\)")


def main(directory: Path, port: int | None = None) -> None:
    """Convert the manifests of stdin."""
    objects: list[Object] = list(yaml.safe_load_all(sys.stdin))
    directory.mkdir(parents=True, exist_ok=True)
    settings = [each for each in objects if each["kind"] == "ConfigMap"]
    for workload in objects:
        if workload["kind"] in ("Deployment", "StatefulSet"):
            played = [*settings, as_deployment(workload, port)]
            (directory / f"{name_in_dns(workload)}.yaml").write_text(yaml.safe_dump_all(played, sort_keys=False))


def name_in_dns(workload: Object) -> str:
    """Return the name by which other pods look for this one: its Service's, but an engine core knows its worker by name."""
    component: str = workload["metadata"]["labels"]["app.kubernetes.io/component"]
    return "worker-0.worker" if component == "worker" else component


def as_deployment(workload: Object, port: int | None) -> Object:
    """Return a workload as podman can play it."""
    spec = workload["spec"]
    if workload["kind"] == "StatefulSet" and spec.get("replicas", 1) > 1:
        sys.exit(f"podman.py: {workload['metadata']['name']} has {spec['replicas']} replicas; podman can play one")
    metadata, pod = spec["template"]["metadata"], spec["template"]["spec"]
    metadata["labels"]["apps.kubernetes.io/pod-index"] = "0"
    for container in pod["containers"]:
        for key in _UNKNOWN:
            container.pop(key, None)
        container["env"] = _with_values(container["env"], metadata["labels"])
        container["ports"] = _published(container["ports"], port)
    kept = {key: spec[key] for key in ("replicas", "selector", "template") if key in spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": workload["metadata"], "spec": kept}


def _with_values(variables: list[Object], labels: dict[str, str]) -> list[Object]:
    """Return variables without references to others; those before them may be made of the pod's labels."""
    known: dict[str, str] = {}
    resolved = []
    for variable in variables:
        if path := variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"):
            known[variable["name"]] = labels[re.fullmatch(r"metadata\.labels\['(.+)'\]", path)[1]]  # type: ignore[index] # or fail
        elif "value" in variable:
            value = _REFERENCE.sub(lambda found: known[found[1]], variable["value"])
            resolved.append({"name": variable["name"], "value": value})
        else:
            resolved.append(variable)
    return resolved


def _published(ports: list[Object], port: int | None) -> list[Object]:
    """Return the ports to open on this machine; podman would open all that a pod names, for everybody."""
    return [each | {"hostIP": "127.0.0.1", "hostPort": port} for each in ports if each["name"] == "http" and port is not None]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python podman.py DIRECTORY [PORT]")
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else None)
