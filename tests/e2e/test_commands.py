"""Commands of the command line against a running server."""

from tests.tetrad.cli.commands import tetrad


def test_status_of_a_url_shows_the_services_behind_it_alone(sim_server):
    """Other stacks of this machine are not shown: a program may kill the pids that it reads here."""
    result = tetrad("status", "--url", sim_server.url)

    lines = result.stdout.splitlines()
    words = [line.split()[0] for line in lines]
    assert result.returncode == 0
    assert words[:4] == ["server", "needs", "load", "stack"]
    assert sim_server.url in lines[3]
    assert sorted(set(words[4:])) == ["engine-core", "frontend", "tokenizer", "tokenizer-2", "worker"]
    assert words.count("stack") == 1
    assert "engine core 0 ready" in lines[1]


def test_ps_lists_a_server_and_logs_show_its_lines(sim_server):
    listed = tetrad("ps").stdout.splitlines()
    logged = tetrad("logs", "--url", sim_server.url, "--lines", "100").stdout.splitlines()
    of_worker = tetrad("logs", "--url", sim_server.url, "--service", "worker").stdout.splitlines()

    [row] = [line for line in listed if line.startswith(f"{sim_server.url} ")]
    assert " ready " in row
    assert "stack | worker ready" in logged
    assert all(line.startswith("worker | ") for line in of_worker)
