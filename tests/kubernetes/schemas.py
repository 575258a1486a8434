"""Validation of Kubernetes objects: its own published schemas, strict, and the used fields of custom resources."""

import functools
import json
from typing import Any

import kubernetes_validate.utils as published
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

Schema = dict[str, Any]

OLDEST = "1.31"
"""What base/kustomization.yaml and docs/kubernetes.md ask for."""
NEWEST = published.major_minor(published.latest_version())

STRING: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(h|m|s|ms))+$"}


def record(required: str, /, **fields: Schema) -> Schema:
    """Return the schema of an object with these fields and no other; `required` are names, separated by spaces."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def some(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def kubernetes_type(name: str) -> Schema:
    return {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.{name}"}


_BACKENDS = some(record("name port", name=STRING, port=NUMBER))
_PARENTS = some(record("name sectionName", name=STRING, sectionName=STRING))
_PATH = record("type value", type=one_of("PathPrefix", "Exact"), value={"type": "string", "pattern": "^/"})
_LISTENER = record(
    "name hostname port protocol tls",
    name=STRING,
    hostname=STRING,
    port=NUMBER,
    protocol=one_of("HTTPS"),
    tls=record("certificateRefs", certificateRefs=some(record("name", name=STRING))),
)
_HTTP_RULE = record(
    "matches backendRefs",
    matches=some(record("path", path=_PATH)),
    timeouts=record("request backendRequest", request=DURATION, backendRequest=DURATION),
    backendRefs=_BACKENDS,
)
_GRPC_RULE = record(
    "matches backendRefs", matches=some(record("method", method=record("service", service=STRING))), backendRefs=_BACKENDS
)
_TRIGGER = record(
    "type metadata",
    type=one_of("prometheus", "kubernetes-workload"),
    name=STRING,
    metricType=one_of("AverageValue", "Value"),
    metadata={"type": "object", "additionalProperties": STRING},
)
_GROUP = record(
    "leaderTemplate workerTemplate size",
    leaderTemplate=kubernetes_type("core.v1.PodTemplateSpec"),
    workerTemplate=kubernetes_type("core.v1.PodTemplateSpec"),
    size=NUMBER,
    restartPolicy=one_of("None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"),
)

CUSTOM: dict[tuple[str, str], Schema] = {
    ("gateway.networking.k8s.io/v1", "Gateway"): record(
        "gatewayClassName listeners", gatewayClassName=STRING, listeners=some(_LISTENER)
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): record("parentRefs rules", parentRefs=_PARENTS, rules=some(_HTTP_RULE)),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): record("parentRefs rules", parentRefs=_PARENTS, rules=some(_GRPC_RULE)),
    ("keda.sh/v1alpha1", "ScaledObject"): record(
        "scaleTargetRef triggers",
        scaleTargetRef=record("name", apiVersion=STRING, kind=STRING, name=STRING),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        triggers=some(_TRIGGER),
        advanced=record(
            "",
            horizontalPodAutoscalerConfig=record(
                "", behavior=kubernetes_type("autoscaling.v2.HorizontalPodAutoscalerBehavior")
            ),
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): record(
        "selector endpoints",
        selector=record("matchLabels", matchLabels={"type": "object", "additionalProperties": STRING}),
        endpoints=some(record("port", port=STRING, interval=DURATION)),
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): record(
        "leaderWorkerTemplate",
        replicas=NUMBER,
        startupPolicy=one_of("LeaderCreated", "LeaderReady"),
        rolloutStrategy=record(
            "type",
            type=one_of("RollingUpdate"),
            rollingUpdateConfiguration=record("", maxUnavailable=NUMBER, maxSurge=NUMBER),
        ),
        leaderWorkerTemplate=_GROUP,
    ),
}
"""Kind -> its `spec`, of the fields that stand here. They were compared with the projects' published schemas once."""


@functools.cache
def _definitions(version: str) -> Registry:
    contents = published.schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
    return Resource.from_contents(contents) @ Registry()


@functools.cache
def _validator(version: str, api_version: str, kind: str) -> Draft202012Validator:
    schema = CUSTOM.get((api_version, kind))
    if schema is None:
        group, _, of_group = api_version.rpartition("/")
        name = f"{group.partition('.')[0]}-{of_group}" if group else of_group
        path = f"kubernetes-json-schema/v{version}.0-local-strict/{kind.lower()}-{name}.json"
        schema = published.schema_contents(path, version)
    else:
        schema = record(
            "apiVersion kind metadata spec", apiVersion=STRING, kind=STRING, metadata={"type": "object"}, spec=schema
        )
    return Draft202012Validator(schema, registry=_definitions(version))


@functools.cache
def _problems(version: str, text: str) -> tuple[str, ...]:
    contents = json.loads(text)
    errors = _validator(version, contents["apiVersion"], contents["kind"]).iter_errors(contents)
    return tuple(f"{contents['kind']} {contents['metadata']['name']}: {error.json_path}: {error.message}" for error in errors)


def problems(version: str, contents: dict[str, Any]) -> tuple[str, ...]:
    """Return what is wrong with an object, a line for each; objects that several overlays share are looked at once."""
    return _problems(version, json.dumps(contents, sort_keys=True))
