"""docs/kubernetes.md: its commands run, with a stand-in for the cluster, and its tables and figures are right."""

import re

import pytest

from tests.kubernetes import schemas
from tests.kubernetes.manifests import (
    DIRECTORY,
    ROOT,
    SETTINGS,
    SHIPPED,
    build,
    components_of,
    container_of,
    objects_of,
    of_kind,
    parsed,
    pods_of,
    settings_of,
)
from tests.kubernetes.page import PAGE, applied, rows


def test_every_image_that_the_manifests_name_is_built_and_loaded(run):
    calls = run(PAGE.block("docker build"))

    images = {container_of("cpu", component)["image"] for component in SETTINGS}
    built = {call.arguments[call.arguments.index("-t") + 1] for call in calls if call.program == "docker"}
    assert built == {call.arguments[-1] for call in calls if call.program == "kind"} == images
    stages = {call.arguments[call.arguments.index("--target") + 1] for call in calls if call.program == "docker"}
    assert stages <= set(re.findall(r" AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def test_the_quick_start_applies_the_overlay_and_asks_the_service_it_forwards(run):
    calls = run(PAGE.block("port-forward"))

    assert applied(calls) == objects_of("cpu")
    (curl,) = [call for call in calls if call.program == "curl"]
    (forward,) = [call for call in calls if "port-forward" in call.arguments]
    own, _, port = forward.arguments[-1].partition(":")
    assert f"http://127.0.0.1:{own}/v1/chat/completions" in curl.arguments
    (service,) = [each for each in of_kind("cpu", "Service") if f"service/{each['metadata']['name']}" in forward.arguments]
    assert int(port) in [each["port"] for each in service["spec"]["ports"]]


@pytest.mark.parametrize("word", ["port-forward", "logs"])
def test_what_commands_name_is_in_the_manifests(run, word):
    calls = run(PAGE.block(word))

    named = [
        each for call in calls if call.program == "kubectl" for each in call.arguments if re.fullmatch(r"[a-z]+/[a-z-]+", each)
    ]
    known = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects_of("cpu")}
    assert named
    assert set(named) <= known


def test_keys_are_where_the_frontend_looks_for_them(run):
    calls = run(PAGE.block("api-keys"))

    (secret,) = [each for each in applied(calls) if each["kind"] == "Secret"]
    (volume,) = [each["secret"] for each in pods_of("gateway-api")["frontend"]["volumes"] if "secret" in each]
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == (volume["secretName"], "tetrad")
    assert list(secret["data"]) == [settings_of("gateway-api", "frontend").api_key_file.name]
    assert [each for each in applied(calls) if each in objects_of("gateway-api")] == objects_of("gateway-api")


def test_another_model_is_one_entry_of_an_overlay(tmp_path):
    (example,) = PAGE.blocks("yaml")
    directory = tmp_path / "mine"
    directory.mkdir()
    (tmp_path / "tetrad").symlink_to(ROOT)
    (directory / "kustomization.yaml").write_text(example)

    built = build(directory)

    objects = parsed(built)
    (settings,) = [each for each in objects if each["kind"] == "ConfigMap"]
    assert settings["data"]["model"] == parsed(example)[0]["configMapGenerator"][0]["literals"][0].partition("=")[2]
    assert built.count(f"name: {settings['metadata']['name']}") == 1 + len(SETTINGS)
    assert [problem for each in objects for problem in schemas.problems(schemas.NEWEST, each)] == []


def test_every_overlay_and_every_component_is_told_of():
    told = rows("Overlays and components")

    overlays = {row[0].strip("`"): set(re.findall(r"`([a-z-]+)`", row[1])) for row in told if len(row) == 2}
    components = {row[0].strip("`") for row in told if len(row) == 3}
    assert overlays == {name: components_of(name) for name in SHIPPED}
    assert components == {path.name for path in (DIRECTORY / "components").iterdir()}
    assert schemas.OLDEST in PAGE.text


@pytest.mark.parametrize("component", SETTINGS)
def test_limits_and_grace_periods_are_the_manifests(component):
    (sizing,) = [row for row in rows("Sizing") if row[0] == component.replace("-", " ")]
    (rollout,) = [row for row in rows("Rollout and upgrade") if row[0] == component.replace("-", " ")]

    assert sizing[4] == container_of("cpu", component)["resources"]["limits"]["memory"]
    assert rollout[2] == f"{pods_of('cpu')[component]['terminationGracePeriodSeconds']} s"


def test_figures_are_the_benchmarks():
    results = (ROOT / "benchmarks/RESULTS.md").read_text()
    (memory,) = re.findall(r"^\| Tetrad, Q4_1 \| [\d.]+ \([^|]*\| 96 \| (.*) \|$", results, re.MULTILINE)
    _, _, _, worker, tokenizer, engine_core, frontend, _ = [cell.split(" (")[0] for cell in memory.split(" | ")]
    cpu_table = results.split("CPU microseconds per output token")[1]
    (cpu,) = re.findall(r"^\| 256 \| (.*) \|$", cpu_table.split("![")[0], re.MULTILINE)
    cpu_frontend, cpu_tokenizer, cpu_engine_core, cpu_worker = cpu.split(" | ")[:4]

    told = {row[0]: row[1:4] for row in rows("Sizing")}

    measured = {"frontend": frontend, "tokenizer": tokenizer, "engine core": engine_core, "worker": worker}
    assert {name: figures[0] for name, figures in told.items()} == measured
    for name, figure in (("frontend", cpu_frontend), ("tokenizer", cpu_tokenizer), ("engine core", cpu_engine_core)):
        assert told[name][1] == figure
        assert float(told[name][2].replace(",", "")) == pytest.approx(1e6 / float(figure), rel=0.02)
    assert told["worker"][1] == f"{cpu_worker} plus the model"


def test_queries_are_the_autoscaler_s():
    told = {row[0].strip("`") for row in rows("Autoscaling") if row[0].startswith("`")}

    scalers = [trigger["metadata"] for each in of_kind("scale", "ScaledObject") for trigger in each["spec"]["triggers"]]
    assert told == {each["query"] for each in scalers if "query" in each}


def test_waiting_times_are_the_settings():
    frontend, engine_core = settings_of("cpu", "frontend"), settings_of("cpu", "engine-core")

    assert f"Requests wait {frontend.recovery_timeout_s:g} s for an engine core" in PAGE.text
    assert f"and {engine_core.recovery_timeout_s:g} s for a worker" in PAGE.text
    assert "take longer than five minutes" in PAGE.text
    assert frontend.drain_timeout_s == 300
