"""Commands of the command line against a running server."""

import subprocess
import sys


def tetrad(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tetrad.cli", *arguments], capture_output=True, text=True, timeout=120)


def test_status_of_a_url_shows_the_services_behind_it_alone(sim_server):
    """The other stacks of this machine are no concern of who names a server."""
    result = tetrad("status", "--url", sim_server.url)

    lines = result.stdout.splitlines()
    assert result.returncode == 0
    assert [line.split()[0] for line in lines] == ["server", "needs", "load"]
    assert "engine core 0 ready" in lines[1]
