"""deploy/systemd/tetrad.service is valid, has few rights, and fits the commands of docs/deployment.md."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import Page
from tetrad.services.process import EXIT_PERMANENT

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/tetrad.service"
MAX_EXPOSURE = 2.5
TETRAD = Path(sys.executable).with_name("tetrad")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze (package systemd) is missing"
)


@pytest.fixture
def unit(tmp_path) -> Path:
    """Return the unit with the program of this environment."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(value("ExecStart").split()[0], str(TETRAD)))
    return unit


def value(key: str) -> str:
    [found] = re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@needs_systemd
def test_systemd_understands_every_line(unit):
    done = analyze("verify", "--man=no", str(unit))

    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_the_service_has_few_rights(unit):
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit))

    assert done.returncode == 0, done.stdout


def test_a_server_that_cannot_start_is_not_started_again():
    """A wrong option (2), and a model or file that is not there (78)."""
    assert value("RestartPreventExitStatus").split() == ["2", str(EXIT_PERMANENT)]


def test_the_page_installs_the_program_the_unit_and_the_options_where_the_unit_has_them():
    program, command, flag, options = value("ExecStart").split()
    commands = Page.of("docs/deployment.md").section("A systemd service").block("systemctl")

    assert (command, flag) == ("serve", "--config")
    assert f"{program} serve --print-config > {options}\n" in commands
    assert f"python3 -m venv {Path(program).parents[1]}\n" in commands
    assert f" {UNIT.relative_to(ROOT)} /etc/systemd/system/{UNIT.name}\n" in commands
