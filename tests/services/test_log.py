"""Logs: one JSON object a line on stderr, with the request's id in every line that concerns it."""

import json
import subprocess
import sys

import pytest
import structlog

from tetrad.services.log import get_logger
from tetrad.services.request_context import add_context


async def test_lines_of_a_call_carry_its_request_id(serve):
    """The log is captured behind the context merge that every configuration of ours has."""
    captured = structlog.testing.LogCapture()
    old = structlog.get_config()
    structlog.configure(
        processors=[add_context, captured],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        cache_logger_on_first_use=False,
    )
    try:

        async def behave(request):
            get_logger().info("echo.called")
            return b""

        client, _ = await serve(behave)
        await client.unary(metadata=(("x-request-id", "r-17"),))
        await client.unary(metadata=(("x-request-id", "r-18"),))
    finally:
        structlog.configure(**old)

    ids = [entry["request_id"] for entry in captured.entries if entry["event"] == "echo.called"]
    assert ids == ["r-17", "r-18"]


def log_lines(source: str) -> list[str]:
    result = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_a_service_logs_json_lines_to_stderr():
    [line] = log_lines(
        "from tetrad.services.log import *; configure_logging('worker'); get_logger().info('step.done', tokens=3)"
    )

    entry = json.loads(line)
    assert {"event": "step.done", "tokens": 3, "service": "worker", "level": "info"}.items() <= entry.items()
    assert "timestamp" in entry


def test_lines_of_every_thread_name_the_service():
    lines = log_lines(
        "import logging, threading; from tetrad.services.log import *; configure_logging('worker')\n"
        "def work(): get_logger().info('device.ready'); logging.getLogger('torch').warning('slow')\n"
        "threading.Thread(target=work).start()"
    )

    assert [json.loads(line)["service"] for line in lines] == ["worker", "worker"]


def test_lines_below_the_level_are_dropped():
    assert not log_lines(
        "from tetrad.services.log import *; configure_logging('worker', level='warning'); get_logger().info('step.done')"
    )


def test_libraries_log_through_the_same_renderer():
    [line] = log_lines(
        "import logging; from tetrad.services.log import *; configure_logging('worker'); logging.warning('from a library')"
    )

    assert json.loads(line)["event"] == "from a library"


def test_a_library_leaves_the_programs_logging_alone():
    [line] = log_lines(
        "import logging; logging.basicConfig(format='mine: %(message)s'); from tetrad.services.log import *;"
        "configure_library_logging(); get_logger().info('quiet'); logging.warning('x')"
    )

    assert line == "mine: x"


@pytest.mark.parametrize("as_json", [True, False])
def test_tracebacks_show_no_values(as_json):
    """A local variable may be a key, or what somebody said to the model."""
    source = f"""
from tetrad.services.log import configure_logging, get_logger
configure_logging("cup", json={as_json})
def drink():
    tea = "ta" + "nnin"
    raise KeyError("cup")
try:
    drink()
except KeyError as error:
    get_logger().error("cup.broken", exc_info=error)
"""

    lines = "\n".join(log_lines(source))

    assert "KeyError" in lines
    assert "drink" in lines
    assert "tannin" not in lines
