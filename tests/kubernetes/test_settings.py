"""The manifests' settings are those of the services: variables, addresses, files, images."""

import re
from pathlib import PurePosixPath

import pytest

from tests.kubernetes.manifests import (
    OVERLAYS,
    ROOT,
    SETTINGS,
    components_of,
    container_of,
    of_kind,
    parsed,
    pods_of,
    ports_of,
    settings_of,
    variables_of,
)
from tetrad.services.settings import Settings, load_settings
from tetrad.services.version import VERSION

EVERY_POD = [(overlay, component) for overlay in OVERLAYS for component in SETTINGS]
every_pod = pytest.mark.parametrize(("overlay", "component"), EVERY_POD)
DOCKERFILE = next(path for path in (ROOT / "Dockerfile", ROOT / "images/Dockerfile") if path.is_file()).read_text()


@every_pod
def test_a_service_starts_with_its_environment(overlay, component, monkeypatch):
    for name, value in variables_of(overlay, component).items():
        monkeypatch.setenv(name, value)

    assert load_settings(SETTINGS[component], [], prog=component) == settings_of(overlay, component)


@every_pod
def test_every_variable_is_the_service_s_or_used_by_one_that_is(overlay, component):
    prefix = SETTINGS[component].model_config["env_prefix"]
    variables = container_of(overlay, component)["env"]

    others = {each["name"] for each in variables if not each["name"].startswith(prefix)}

    downloads = "hf-token" in components_of(overlay) and component in ("tokenizer", "worker")
    assert others == set(re.findall(r"\$\((\w+)\)", str(variables))) | ({"HF_TOKEN"} if downloads else set())
    assert len({each["name"] for each in variables}) == len(variables)


@every_pod
def test_references_to_variables_are_resolved(overlay, component):
    """The kubelet resolves a reference to what stands before it; others it leaves as they are."""
    assert not [value for value in variables_of(overlay, component).values() if "$(" in value]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_engine_core_finds_its_worker_and_no_other(overlay):
    target = settings_of(overlay, "engine-core").worker_target

    if "tensor-parallel" in components_of(overlay):
        assert target == "engine-0-1.engine:50053,engine-0-2.engine:50053"
    elif "leaderworkerset" in components_of(overlay):
        assert target == "dns:///engine-0-1.engine:50053"
    else:
        full_name = "worker-0.worker.tetrad.svc" if "tls" in components_of(overlay) else "worker-0.worker"
        assert target == f"dns:///{full_name}:50053"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_requests_can_be_pinned_to_an_engine_core_by_the_number_of_its_pod(overlay):
    """Without a rank of its own it has its place in the order of addresses, which change with every pod."""
    assert variables_of(overlay, "engine-core")["TETRAD_ENGINE_CORE_DATA_PARALLEL_RANK"] == "0"


@every_pod
def test_the_service_listens_on_every_port_that_its_pod_names(overlay, component):
    settings = settings_of(overlay, component)

    listens = {"metrics": settings.metrics_port}
    if component == "frontend":
        listens |= {"http": settings.port, "grpc": settings.grpc_port}
        assert settings.host == "0.0.0.0"
    else:
        addresses = {"grpc": settings.listen}
        if component == "engine-core":
            addresses["admin"] = settings.admin_listen
        assert {address.rpartition(":")[0] for address in addresses.values()} == {"0.0.0.0"}
        listens |= {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}

    assert settings.metrics_host == "0.0.0.0"
    assert listens == ports_of(overlay, component)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_look_for_each_other_where_they_listen(overlay):
    frontend, engine_core = settings_of(overlay, "frontend"), settings_of(overlay, "engine-core")

    looked_for = {
        *(("tokenizer", "grpc", target) for target in (*frontend.tokenizer_targets, *engine_core.tokenizer_targets)),
        *(("engine-core", "grpc", target) for target in frontend.engine_targets),
        *(("engine-core", "admin", target) for target in frontend.engine_admin_targets),
    }

    assert len(looked_for) == 3
    headless = {each["metadata"]["name"] for each in of_kind(overlay, "Service") if each["spec"].get("clusterIP") == "None"}
    for component, port, target in looked_for:
        assert target == f"dns:///{component}:{ports_of(overlay, component)[port]}"
        assert component in headless, "all pods behind the name are wanted, not one address for them"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_serve_the_same_model(overlay):
    models = {settings_of(overlay, component).model for component in SETTINGS}

    assert len(models) == 1


@every_pod
def test_traces_go_to_the_collector_where_they_are_wanted(overlay, component):
    wanted = "http://otel-collector.monitoring.svc:4317" if "tracing" in components_of(overlay) else None

    assert settings_of(overlay, component).otlp_endpoint == wanted


@every_pod
def test_files_that_settings_name_are_in_a_volume_that_has_them(overlay, component):
    volumes = {volume["name"]: volume for volume in pods_of(overlay)[component]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container_of(overlay, component)["volumeMounts"]}
    secrets = {path: volume["secret"]["secretName"] for path, volume in mounts.items() if "secret" in volume}

    files = {
        name: path
        for name, path in settings_of(overlay, component).model_dump().items()
        if name.endswith(("_file", "_certs", "certfile", "keyfile")) and path is not None
    }

    expected = {}
    if "tls" in components_of(overlay):
        names = {"tls_cert_file": "tls.crt", "tls_key_file": "tls.key", "tls_ca_file": "ca.crt"}
        expected = {name: (f"{component}-tls", file) for name, file in names.items()}
    if "api-keys" in components_of(overlay) and component == "frontend":
        expected |= {"api_key_file": ("api-keys", "keys")}
    assert {name: (secrets[str(path.parent)], path.name) for name, path in files.items()} == expected


@every_pod
def test_what_is_written_goes_to_a_volume(overlay, component):
    """The root file system is read-only: models, responses, profiles and temporary files have volumes."""
    writable = {mount["mountPath"] for mount in container_of(overlay, component)["volumeMounts"] if not mount.get("readOnly")}
    (cache,) = re.findall(r"TETRAD_CACHE_DIR=(\S+)", DOCKERFILE)
    settings = settings_of(overlay, component)

    assert "/tmp" in writable
    if component != "engine-core":
        assert cache in writable
    if component != "tokenizer":
        assert any(PurePosixPath(settings.profile_dir).is_relative_to(path) for path in writable)
    if component == "frontend":
        assert settings.responses_store in ("none", ":memory:")


@every_pod
def test_images_are_those_that_the_dockerfile_makes_in_this_version(overlay, component):
    [compose] = parsed((ROOT / "docker-compose.yml").read_text())
    images = {service["image"] for service in compose["services"].values() if "build" in service}
    gpu = "-gpu" if component == "worker" and "gpu" in components_of(overlay) else ""

    name, _, tag = container_of(overlay, component)["image"].partition(":")

    assert (name, tag) == (f"tetrad-{component}{gpu}", VERSION)
    assert gpu or name in images
    assert f"AS {component}\n" in DOCKERFILE


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_responses_are_kept_where_there_is_one_frontend(overlay):
    (frontend,) = [each for each in of_kind(overlay, "Deployment") if each["metadata"]["name"] == "frontend"]

    is_alone = frontend["spec"].get("replicas") == 1

    assert settings_of(overlay, "frontend").responses_store == (":memory:" if is_alone else "none")


def test_the_settings_are_read_as_a_process_reads_them():
    assert issubclass(SETTINGS["worker"], Settings)
    assert settings_of("cpu", "worker").listen == "0.0.0.0:50053"
