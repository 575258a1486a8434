"""The compose file and the Dockerfile use valid settings of the services, in every profile."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tetrad.cli.serve import run
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS
from tetrad.services.settings import child_environment, load_settings
from tetrad.stack.service_names import HEALTH_NAMES
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "frontend": FrontendSettings,
    "tokenizer": TokenizerSettings,
    "engine-core": EngineCoreSettings,
    "worker": WorkerSettings,
}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ROLES = {
    name: role
    for name in SERVICES
    for role in SETTINGS
    if re.fullmatch(rf"{role}(-\d|-gpu|-two-models|-second|-prefill|-decode|-tls|-tp2|-tp2-rank-\d)?", name)
}  # fmt: skip
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
PROFILES = {
    "cpu": {"frontend", "tokenizer", "engine-core", "worker"},
    "gpu": {"frontend", "tokenizer", "engine-core", "worker-gpu"},
    "scale": {
        *("balancer", "frontend-1", "frontend-2", "tokenizer", "tokenizer-2"),
        *("engine-core", "engine-core-2", "worker", "worker-2"),
    },
    "two-models": {
        *("frontend-two-models", "tokenizer", "engine-core", "worker"),
        *("tokenizer-second", "engine-core-second", "worker-second"),
    },
    "prefill": {
        *("frontend-prefill", "tokenizer", "engine-core-decode", "engine-core-prefill"),
        *("worker-decode", "worker-prefill"),
    },
    "tls": {"certificates", "frontend-tls", "tokenizer-tls", "engine-core-tls", "worker-tls"},
    "tp2": {"frontend-tp2", "tokenizer-tp2", "engine-core-tp2", "worker-tp2-rank-0", "worker-tp2-rank-1"},
    "observability": {"prometheus", "grafana", "otel-collector", "jaeger"},
}


def unset(text: str) -> str:
    """Return a text as compose reads it where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def settings_of(name: str, monkeypatch):
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, unset(value))
    settings = load_settings(SETTINGS[ROLES[name]], [], prog=name)
    for variable in SERVICES[name]["environment"]:
        monkeypatch.delenv(variable)
    return settings


def port_of(name: str, monkeypatch) -> str:
    settings = settings_of(name, monkeypatch)
    address = settings.grpc_address if ROLES[name] == "frontend" else settings.listen
    return address.rpartition(":")[2]


def test_each_profile_runs_what_it_says():
    found = {profile: {name for name, service in SERVICES.items() if profile in service["profiles"]} for profile in PROFILES}

    assert found == PROFILES
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == set(PROFILES)


@pytest.mark.parametrize("name", ROLES)
def test_one_variable_gives_every_service_the_collector(name, monkeypatch):
    [variable] = [each for each in SERVICES[name]["environment"] if each.endswith("_OTLP_ENDPOINT")]

    assert SERVICES[name]["environment"][variable] == "${TETRAD_OTLP_ENDPOINT:-}"
    assert settings_of(name, monkeypatch).otlp_endpoint is None


def test_one_command_runs_the_stack_without_a_gpu():
    assert "\nCOMPOSE_PROFILES=cpu\n" in (ROOT / ".env").read_text()


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_services_of_a_profile_take_the_same_port_of_the_machine(profile):
    ports = [unset(port) for name in PROFILES[profile] for port in SERVICES[name].get("ports", ())]

    assert len(ports) == len(set(ports))
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", ROLES)
def test_every_variable_is_a_setting(name, monkeypatch):
    assert child_environment(settings_of(name, monkeypatch))


@pytest.mark.parametrize("name", ROLES)
def test_every_service_listens_where_it_does_by_default(name, monkeypatch):
    defaults = SETTINGS[ROLES[name]]()
    settings = settings_of(name, monkeypatch)

    if ROLES[name] == "frontend":
        assert settings.port == defaults.port
    else:
        assert settings.listen.rpartition(":")[2] == defaults.listen.rpartition(":")[2]
    exposed = re.search(rf"^FROM \S+ AS {ROLES[name]}\n(?:.*\n)*?EXPOSE (.*)\n", DOCKERFILE, re.MULTILINE)[1]
    assert port_of(name, monkeypatch) in exposed.split()


@pytest.mark.parametrize("name", OWN)
def test_every_service_has_an_image_of_its_own_and_waits_for_no_other(name):
    service = OWN[name]

    assert f" AS {service['build']['target']}\n" in DOCKERFILE
    assert service["restart"] == ("on-failure" if name == "certificates" else "unless-stopped")
    assert "depends_on" not in service, "services find each other in any order"


@pytest.mark.parametrize("name", OWN)
def test_every_container_can_change_nothing_and_get_no_rights(name):
    service = OWN[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", ROLES)
def test_running_requests_get_their_time_before_the_container_is_killed(name, monkeypatch):
    assert (
        settings_of(name, monkeypatch).drain_timeout_s + 2 < float(SERVICES[name]["stop_grace_period"].removesuffix("s")) <= 15
    )


@pytest.mark.parametrize("name", ROLES)
def test_the_health_check_asks_the_port_and_the_service(name, monkeypatch):
    *_, address, service = SERVICES[name]["healthcheck"]["test"]

    assert address == f"127.0.0.1:{port_of(name, monkeypatch)}"
    assert service == HEALTH_NAMES[ROLES[name]]


def targets_of(name: str, monkeypatch) -> list[tuple[str, str]]:
    """Return (role, target) of all that a service calls."""
    settings = settings_of(name, monkeypatch)
    if ROLES[name] == "frontend":
        return [
            (role, target)
            for model in settings.each_model()
            for role, targets in (("tokenizer", model.tokenizer_targets), ("engine-core", model.engine_targets))
            for target in targets
        ]
    if ROLES[name] == "engine-core":
        # Ranks meet at these addresses, so they are plain names.
        prefix = "dns:///" if settings.tensor_parallel_size > 1 else ""
        workers = [("worker", prefix + target) for target in settings.worker_targets]
        return workers + [("tokenizer", target) for target in settings.tokenizer_targets]
    return []


@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"observability"}))
def test_the_services_look_for_each_other_where_they_listen(profile, monkeypatch):
    names = {name: ROLES[name] for name in PROFILES[profile] if name in ROLES}
    # worker-gpu goes by the name of the worker that it stands for.
    by_host = {alias: name for name in names for alias in (name, *aliases_of(name))}

    called = set()
    for name in names:
        for role, target in targets_of(name, monkeypatch):
            scheme, _, address = target.rpartition("/")
            host, _, port = address.rpartition(":")
            assert scheme == "dns://"
            assert (ROLES[by_host[host]], port_of(by_host[host], monkeypatch)) == (role, port)
            called.add(by_host[host])

    assert called == {name for name, role in names.items() if role != "frontend"}


def aliases_of(name: str) -> list[str]:
    return SERVICES[name].get("networks", {}).get("default", {}).get("aliases", [])


def test_the_admin_ports_are_those_of_the_engine_cores_in_their_order(monkeypatch):
    for name in (name for name, role in ROLES.items() if role == "frontend"):
        settings = settings_of(name, monkeypatch)

        assert [target.replace(":50052", ":50054") for target in settings.engine_targets] == list(settings.engine_admin_targets)


def test_the_engine_core_that_generates_reads_from_the_worker_of_the_other_one(monkeypatch):
    producer, consumer = (settings_of(f"engine-core-{name}", monkeypatch) for name in ("prefill", "decode"))
    host, port = producer.kv_host_and_port

    assert (producer.kv_role, consumer.kv_role) == ("producer", "consumer")
    assert consumer.kv_peers == (f"{host}:{port}",)
    assert producer.worker_targets == (f"dns:///{host}:{port}",)
    assert producer.data_parallel_rank != consumer.data_parallel_rank


def test_the_balancer_knows_the_frontends():
    config = (ROOT / "deploy/compose/haproxy.cfg").read_text()
    servers = re.findall(r"^ +server \S+ (\S+)$", config, re.MULTILINE)

    assert re.findall(r"^ +default_backend (\S+)$", config, re.MULTILINE) == re.findall(
        r"^backend (\S+)$", config, re.MULTILINE
    )
    assert servers == [f"frontend-{number}:{port}" for port in (8000, 50050) for number in (1, 2)]


def test_the_balancer_cuts_no_stream_of_a_frontend_that_is_not_ready():
    """A frontend is not ready while it drains, or while engine cores recover, and finishes what it has."""
    config = (ROOT / "deploy/compose/haproxy.cfg").read_text()

    assert "on-marked-down shutdown-sessions" in config  # a frontend that does not answer has no streams
    assert re.search(
        r"^ +option httpchk GET /health/ready\n +http-check expect status 200 error-status L7OKC$", config, re.MULTILINE
    )


@pytest.mark.parametrize("name", [name for name in ROLES if name.endswith("-tls")])
def test_profile_tls_asks_for_certificates_that_are_made_for_the_names_in_use(name, monkeypatch):
    settings, script = settings_of(name, monkeypatch), (ROOT / "deploy/compose/certificates.sh").read_text()

    assert settings.tls_ca_file is not None
    assert {str(path.parent) for path in (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)} == {
        "/certificates"
    }
    assert f"certificates-{ROLES[name]}:/certificates:ro" in SERVICES[name]["volumes"]
    assert f"certificates-{ROLES[name]}:/certificates/{ROLES[name]}" in SERVICES["certificates"]["volumes"]
    assert ROLES[name] in re.search(r"^for name in (.*); do", script, re.MULTILINE)[1].split()
    if ROLES[name] == "frontend":
        assert settings.ssl_ca_certs == settings.tls_ca_file


def test_other_images_are_pinned():
    images = [service["image"] for name, service in SERVICES.items() if name not in OWN]

    assert all(re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", image) for image in images)


def test_every_file_and_volume_that_is_mounted_is_there():
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]

    assert {mount for mount in mounts if not mount.startswith("./")} == set(COMPOSE["volumes"])
    assert [mount for mount in mounts if mount.startswith("./") and not (ROOT / mount).exists()] == []


def test_prometheus_asks_every_service_where_it_tells_its_metrics(monkeypatch):
    config = yaml.safe_load((ROOT / "deploy/observability/prometheus.yml").read_text())
    asked = {name: sd["port"] for job in config["scrape_configs"] for sd in job["dns_sd_configs"] for name in sd["names"]}

    # worker-gpu is found as the worker that it stands for.
    assert asked == {name: settings_of(name, monkeypatch).metrics_port for name in ROLES if not aliases_of(name)}


def test_what_prometheus_and_grafana_are_given_is_what_they_are_to_read():
    mounts = [volume.split(":") for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"]]
    inside = {target: ROOT / source for source, target, *_ in mounts if source.startswith("./")}
    [provider] = yaml.safe_load((inside["/etc/grafana/provisioning"] / "dashboards/tetrad.yml").read_text())["providers"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

    assert (inside["/etc/prometheus"] / "prometheus.yml").is_file()
    assert (inside[provider["options"]["path"]] / home.name).is_file()
    assert str(home.parent) == provider["options"]["path"]


def test_only_the_worker_has_torch():
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))

    assert [name for name, text in stages.items() if "worker.txt" in text or "torch" in text.lower()] == ["worker"]
    assert all("USER tetrad" in stages[name] for name in SETTINGS)


def test_services_in_containers_wait_for_sockets_as_those_of_one_command():
    assert all(f"    {name}={value}\n" in DOCKERFILE for name, value in GRPC_POLLERS.items())


def test_without_a_target_the_image_of_all_services_is_built(capsys):
    assert DOCKERFILE.endswith("\nFROM all\n")
    [text] = re.findall(r"^FROM worker AS all\n(.*?)(?=^FROM)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    check = json.loads(re.search(r"^HEALTHCHECK .*?CMD (\[.*?\])$", text, re.MULTILINE | re.DOTALL)[1])
    assert run([*entry[2:], "--print-config"]) == 0
    served = yaml.safe_load(capsys.readouterr().out)

    # The worker's stage has the requirements of its own and of every service.
    files = {f"{each}.txt" for each in ("frontend", "gateways", "tokenizer", "engine-core", "cli")}
    assert files | {"common.txt", "worker.txt"} == {path.name for path in (ROOT / "requirements").glob("*.txt")}
    assert files == set(re.findall(r"-r (\S+)", text))
    assert entry[:2] == ["tetrad", "serve"]
    assert served["host"] == "0.0.0.0"
    assert {str(served["port"]), str(served["grpc_port"])} == set(re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)[1].split())
    assert check[-2:] == [f"127.0.0.1:{served['grpc_port']}", HEALTH_NAMES["frontend"]]
    assert text.rindex("USER tetrad") > text.rindex("USER root")
