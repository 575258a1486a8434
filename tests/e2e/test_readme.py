"""README.md's examples of a running server, run as written: every block that names the server's address, in order."""

import json
import re
import subprocess
import sys

import pytest

from tests.documents import Page

PAGE = Page.of("README.md")
ADDRESS = "http://127.0.0.1:8000"


def test_the_python_of_the_readme_runs(server):
    """One script: later blocks use the client that the first one makes."""
    live = [text for text in PAGE.blocks("python") if ADDRESS in text or "client." in text]
    script = "\n".join(live).replace(ADDRESS, server.url)

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)

    assert len(live) == 3
    assert ran.returncode == 0, ran.stderr
    # White space of the model's own choice is around the names.
    assert re.search(r'\{\s*"name"\s*:\s*"(Tom|Kit)"\s*,\s*"age"\s*:\s*[0-9]+\s*\}', ran.stdout), ran.stdout
    assert re.search(r'\{\s*"city"\s*:\s*"(Paris|Oslo)"\s*\}', ran.stdout), ran.stdout


@pytest.mark.parametrize("command", [text for text in PAGE.blocks() if text.startswith("curl ")])
def test_the_commands_of_the_readme_are_answered(server, command):
    ran = subprocess.run(
        ["bash", "-c", command.replace(ADDRESS, server.url).replace("curl ", "curl -sS --fail-with-body ", 1)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    texts = [choice["text"] for choice in json.loads(ran.stdout)["choices"]]
    assert texts
    assert all(texts), "an example that prints nothing shows nothing"
