"""Log lines of services on a terminal, and elsewhere."""

import io
import json

import pytest

from tetrad.stack.terminal_lines import TerminalLines, line_renderer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(**fields):
    return json.dumps({"timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "service": "worker", **fields}) + "\n"


def test_an_event_is_led_by_its_services_name_and_has_its_fields():
    render = TerminalLines("tokenizer-2", colours=False)

    line = render(event(event="request.finished", request_id="cmpl-1", e2e_s=0.123456, reason="a b"))

    assert line == 'tokenizer-2 | 03:04:05 request.finished request_id=cmpl-1 e2e_s=0.1235 reason="a b"\n'


def test_a_name_has_the_colour_of_its_kind(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)

    first, second = (line_renderer(name, Terminal())("x\n") for name in ("worker", "worker-2"))

    assert first == "\x1b[35mworker      |\x1b[0m x\n"
    assert second.startswith("\x1b[35mworker-2 ")


def test_a_request_has_one_line_and_fields_without_a_value_are_left_out():
    ended = event(event="request.finished", error=None)

    assert TerminalLines("engine-core", colours=False)(ended.replace("worker", "engine-core")) == ""
    assert TerminalLines("frontend", colours=False)(ended.replace("worker", "frontend")).endswith(" request.finished\n")


def test_no_color_leaves_colours_out(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    assert line_renderer("worker", Terminal())(event(event="x", level="error")) == "worker      | 03:04:05 error x\n"


def test_each_line_of_a_traceback_has_the_name():
    lines = TerminalLines("worker", colours=False)(event(event="step.failed", exception="Traceback\n  at x")).splitlines()

    assert lines == ["worker      | 03:04:05 step.failed", "worker      | Traceback", "worker      |   at x"]


@pytest.mark.parametrize("field", ["event", "request_id", "level", "timestamp", "exception"])
def test_control_characters_of_a_request_do_not_reach_the_terminal(field):
    line = TerminalLines("worker", colours=False)(event(**{"event": "x", field: "a" * 11 + "\x1b]0;b\x07\x9b"}))

    assert all(character.isprintable() for character in line.replace("\n", ""))


def test_lines_stay_as_they_are_elsewhere_than_on_a_terminal():
    line = event(event="x")

    assert line_renderer("worker", io.StringIO())(line) == line
