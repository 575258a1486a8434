"""The compose file and the Dockerfile say what the services understand."""

import re
from pathlib import Path

import pytest
import yaml

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.local_stack import HEALTH_NAMES
from tetrad.services.settings import child_environment, load_settings
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "frontend": FrontendSettings,
    "tokenizer": TokenizerSettings,
    "engine-core": EngineCoreSettings,
    "worker": WorkerSettings,
}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def settings_of(name: str, monkeypatch):
    for variable, value in COMPOSE[name]["environment"].items():
        # "${NAME:-default}" as compose reads it where NAME is unset.
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
    return load_settings(SETTINGS[name], [], prog=name)


def test_the_four_services_are_there():
    assert set(COMPOSE) == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_variable_is_a_setting(name, monkeypatch):
    assert child_environment(settings_of(name, monkeypatch))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_service_has_an_image_of_its_own_and_comes_back(name):
    service = COMPOSE[name]

    assert f"AS {service['build']['target']}\n" in DOCKERFILE
    assert service["restart"] == "unless-stopped"
    assert "depends_on" not in service, "services find each other in any order"


def port_of(name: str, monkeypatch) -> str:
    settings = settings_of(name, monkeypatch)
    address = settings.grpc_address if name == "frontend" else settings.listen
    return address.rpartition(":")[2]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_health_check_asks_the_port_and_the_service(name, monkeypatch):
    *_, address, service = COMPOSE[name]["healthcheck"]["test"]

    assert address == f"127.0.0.1:{port_of(name, monkeypatch)}"
    assert service == HEALTH_NAMES[name]


def test_the_services_look_for_each_other_where_they_listen(monkeypatch):
    frontend = settings_of("frontend", monkeypatch)

    [tokenizer] = frontend.tokenizer_targets
    assert tokenizer.endswith(f"tokenizer:{port_of('tokenizer', monkeypatch)}")
    assert [target.rpartition("/")[2] for target in frontend.engine_targets] == [
        f"engine-core:{port_of('engine-core', monkeypatch)}"
    ]
    assert settings_of("engine-core", monkeypatch).worker_target.endswith(f"worker:{port_of('worker', monkeypatch)}")


def test_only_the_worker_has_torch():
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))

    assert [name for name, text in stages.items() if "[worker]" in text or "torch" in text.lower()] == ["worker"]
    assert all("USER tetrad" in stages[name] for name in SETTINGS)
