"""`tetrad ps` and `tetrad logs`: the log of a stack, and the choice of a server."""

import io
import shutil
import threading
from pathlib import Path

import pytest

from tetrad.cli.servers.logs import check_service, new_lines, renderer
from tetrad.cli.servers.ps import row_of
from tetrad.cli.servers.running import RunningServer, chosen_server
from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.stack.stack_log import StackLog, log_path, parts_of, read_lines


def test_lines_are_kept_with_their_service_in_order(tmp_path):
    log = StackLog(tmp_path)

    log.of("worker")("one")
    log.of("frontend")("two | three")

    assert read_lines(tmp_path) == ["worker | one", "frontend | two | three"]
    assert [parts_of(line) for line in read_lines(tmp_path)] == [("worker", "one"), ("frontend", "two | three")]


def test_lines_of_a_service_that_the_server_does_not_have_are_refused(tmp_path):
    StackLog(tmp_path).of("worker")("one")
    (tmp_path / "frontend.sock").touch()

    check_service(tmp_path, "worker")
    check_service(tmp_path, "frontend")  # it has written nothing yet
    with pytest.raises(NotFound, match="This server has no service 'workers'; it has frontend, worker"):
        check_service(tmp_path, "workers")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ENDED = '{"timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "service": "engine-core", "event": "request.finished"}'


def test_a_terminal_shows_lines_led_by_their_service_in_colour(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    render = renderer(Terminal())

    shown = [render(line) for line in (f"engine-core | {ENDED}", "worker | plain text")]

    # A server's own terminal leaves the engine core's line out, since the frontend has one.
    assert shown == ["\x1b[33mengine-core |\x1b[0m 03:04:05 request.finished", "\x1b[35mworker      |\x1b[0m plain text"]


def test_a_file_gets_lines_as_they_were_written():
    assert renderer(io.StringIO())(f"engine-core | {ENDED}") == f"engine-core | {ENDED}"


def test_old_lines_make_room_for_new_ones(tmp_path):
    log = StackLog(tmp_path, max_bytes=100)

    for number in range(50):
        log.write("worker", f"line {number}")

    lines = read_lines(tmp_path)
    assert lines[-1] == "worker | line 49"
    assert 5 < len(lines) < 15
    assert lines == [f"worker | line {number}" for number in range(50 - len(lines), 50)]


def test_a_log_that_cannot_be_written_costs_its_lines_alone(tmp_path):
    StackLog(tmp_path / "gone").write("worker", "line")

    assert read_lines(tmp_path / "gone") == []


def test_a_log_whose_file_was_removed_is_begun_again(tmp_path):
    """Cleaners of /tmp remove old files."""
    log = StackLog(tmp_path, max_bytes=100)
    log.write("worker", "x" * 80)
    log_path(tmp_path).unlink()

    for number in range(3):
        log.write("worker", f"line {number}, {'x' * 20}")

    assert len(read_lines(tmp_path)) == 3


def test_new_lines_are_followed_into_the_next_file_until_the_directory_is_gone(tmp_path):
    directory = tmp_path / "stack"
    directory.mkdir()
    log, seen, begun = StackLog(directory, max_bytes=60), [], threading.Event()
    log.write("worker", "before")

    def follow():
        for line in new_lines(log_path(directory)):
            seen.append(line)
            begun.set()

    reader = threading.Thread(target=follow)
    reader.start()
    number = 0
    while not begun.wait(0.05):
        log.write("worker", f"line {(number := number + 1)}")
    seen_at_first = seen[0]
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    reader.join(10)

    assert not reader.is_alive()
    assert seen_at_first.startswith("worker | line ")


def test_a_log_that_is_removed_while_it_is_looked_at_ends_the_lines(tmp_path, monkeypatch):
    """The server may end at any moment."""
    directory = tmp_path / "stack"
    directory.mkdir()
    StackLog(directory).write("worker", "line")
    exists = Path.exists

    def exists_for_the_last_time(path):
        found = exists(path)
        shutil.rmtree(directory, ignore_errors=True)
        return found

    monkeypatch.setattr(Path, "exists", exists_for_the_last_time)

    assert list(new_lines(log_path(directory))) == []


def test_the_only_server_is_chosen_or_the_one_at_a_url():
    one, other = RunningServer(Path("/a"), "http://127.0.0.1:1"), RunningServer(Path("/b"), "http://127.0.0.1:2")

    assert chosen_server([one], None) == one
    assert chosen_server([one, other], "http://localhost:2/") == other
    with pytest.raises(InvalidRequest, match=r"http://127\.0\.0\.1:1, http://127\.0\.0\.1:2\. Choose one with --url"):
        chosen_server([one, other], None)
    with pytest.raises(NotFound, match="No server runs"):
        chosen_server([], None)
    with pytest.raises(NotFound, match=r"is at http://127\.0\.0\.1:3"):
        chosen_server([one], "http://127.0.0.1:3")


def test_a_server_that_does_not_answer_is_listed(tmp_path):
    row = row_of(RunningServer(tmp_path, "http://127.0.0.1:9"), None, None)

    assert (row[0], row[3]) == ("http://127.0.0.1:9", "no answer")
