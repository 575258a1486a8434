"""docs/security.md is correct: its limits and ports are the settings', and its recipe makes valid certificates."""

import re
import subprocess

import pytest

from tests.documents import Page
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.structured_output.compiled import MAX_LANGUAGE_CHARS
from tetrad.frontend.api.http.middleware.access import CONSOLE_FILES, DOCUMENTATION_FILES, OPEN_PATHS, require_operator
from tetrad.frontend.api.http.operations import loading, loras, operator
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.request.structured_outputs import MAX_NESTING
from tetrad.services.settings import ServiceSettings
from tetrad.services.tls.identity import Identity, TlsFiles
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

PAGE = Page.of("docs/security.md")
OWNERS = {
    "frontend": FrontendSettings,
    "every gRPC port": ServiceSettings,
    "tokenizer": TokenizerSettings,
    "engine core": EngineCoreSettings,
    "worker": WorkerSettings,
}
OWN_USE = {
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_queued_reqs",
    "max_queued_steps",
    "max_decode_slowdown",
    "max_cpu_loras",
    "max_loras",
}
"""What a service may use and how it paces itself, not what a request may ask."""
LIMITS = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\w ]+) \|$", PAGE.text, re.MULTILINE)
PORTS = re.findall(r"^\| (\d+) \| `(\w+)` of the ([\w ]+) \|", PAGE.text, re.MULTILINE)


@pytest.mark.parametrize(("name", "default", "owner"), LIMITS)
def test_a_limit_is_the_setting_s_default(name, default, owner):
    assert OWNERS[owner].model_fields[name].default == int(default)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_limit_of_sizes_and_numbers_is_in_the_table(owner):
    named = {name for name in OWNERS[owner].model_fields if name.startswith("max_")} - OWN_USE
    listed = {name for name, _, _ in LIMITS}

    assert named - listed == set()


@pytest.mark.parametrize(("port", "setting", "owner"), PORTS)
def test_a_port_is_the_setting_s_default(port, setting, owner):
    assert OWNERS[owner].model_fields[setting].default == f"127.0.0.1:{port}"


def test_the_tables_were_found():
    assert len(LIMITS) > 20
    assert len(PORTS) == 4
    assert all(f"`{path}`" in PAGE.text for path in (*OPEN_PATHS, CONSOLE_FILES, DOCUMENTATION_FILES))
    assert f"{MAX_LANGUAGE_CHARS} characters, and the JSON of a schema {MAX_NESTING} levels" in PAGE.text


@pytest.mark.parametrize("page", [PAGE, Page.of("docs/requests.md")], ids=["security", "requests"])
def test_every_endpoint_for_operators_is_named(page):
    routes = [route for module in (operator, loras, loading) for route in module.router.routes]
    paths = {route.path for route in routes if any(each.dependency is require_operator for each in route.dependencies)}
    section = page.section("Keys" if page is PAGE else "Keys and operators").text

    assert len(paths) > 8
    assert {path for path in paths if f"`{path}`" not in section} == set()


def test_the_recipe_makes_a_certificate_that_its_authority_signed(tmp_path):
    [recipe] = PAGE.blocks()

    subprocess.run(["sh", "-euc", recipe], cwd=tmp_path, check=True, capture_output=True, timeout=30)

    Identity(TlsFiles(tmp_path / "worker.crt", tmp_path / "worker.key", tmp_path / "ca.crt"))
    check = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "localhost", "worker.crt"]
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True, timeout=30).returncode == 0
