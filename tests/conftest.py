"""Fixtures for all folders of tests (the real model, directories for sockets), and settings of the test process."""

import functools
import gc
import os
import signal
import socketserver
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default as httpx_transport
from httpx2._transports import default as httpx2_transport

from tetrad.services.hub.model_files import DEFAULT_MODEL, resolve_model

# Makes `tests` importable however pytest is started: what several folders share is in modules, too.
sys.path.insert(0, str(Path(__file__).parents[1]))

if not Path("/dev/nvidiactl").exists():
    # Triton's own functions are interpreted only if this is set before anybody imports them, as torch does for many reasons.
    os.environ["TRITON_INTERPRET"] = "1"

# Tests run side by side, a process a core: a team of threads would turn and wait for the member whose core another test has.
# For what tests start, too; the worker's own kernels have as many threads as its settings say.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A stack is six processes, and hundreds of stacks are started: they read compiled modules, also where the environment, as that
# of many images, writes none.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and children inherit it: tests of Ctrl-C would wait for their timeouts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# httpx waits 5 s for an answer, which is too short on a loaded machine. Its functions share this object as their default.
for _limit in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _limit, 60.0)


# A server of the standard library sees twice a second whether it is to end: the many that tests start are waited for so long.
socketserver.BaseServer.serve_forever.__defaults__ = (0.02,)


def _once(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Return httpx's or httpx2's maker of TLS contexts, which keeps that of clients without certificates of their own.

    It reads the authorities of the whole world, which takes 20 ms: for each client, and thus for each call of `httpx.get`.
    """
    variables = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    plain = functools.cache(lambda *_: create())

    def created(verify: ssl.SSLContext | bool = True, cert: object = None, *, trust_env: bool = True) -> ssl.SSLContext:
        is_plain = verify is True and cert is None and trust_env
        return plain(*map(os.environ.get, variables)) if is_plain else create(verify=verify, cert=cert, trust_env=trust_env)

    return created


httpx_transport.create_ssl_context = _once(httpx_transport.create_ssl_context)
httpx2_transport.create_ssl_context = _once(httpx2_transport.create_ssl_context)  # that of OpenAI's and Anthropic's clients

# An example may take longer than Hypothesis's 200 ms there, and so may making examples. They are the same ones in each run;
# `make fuzz` tries others.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="TEST_FUZZ_EXAMPLES" not in os.environ,
)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Search for no garbage while modules are imported, and not among them later: they are a million objects, and they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let no later search for garbage visit what a module of tests leaves, such as imported modules and what is cached.

    Each load of a model ends with such a search, which takes seconds if it visits all that thousands of tests have left. mypy,
    which a test runs in this process, unfreezes everything.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


class Grids:
    """What was collected: for each test function, whether `make test` runs a case of it, and what its exhaustive cases name.

    Attributes:
        short: functions with a case that is not exhaustive.
        exhaustive: functions with exhaustive cases -> the functions that their marks name as the short version, if any.
    """

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self.short: set[str] = set()
        self.exhaustive: dict[str, set[str | None]] = {}
        for item in items:
            function = item.nodeid.split("[")[0]
            mark = item.get_closest_marker("exhaustive")
            if mark is None:
                self.short.add(function)
            else:
                self.exhaustive.setdefault(function, set()).add(mark.kwargs.get("short"))

    def without_short_version(self) -> set[str]:
        """Return the functions that `make test` runs no case of, and that name no other function which it runs."""
        return {
            function
            for function, names in self.exhaustive.items()
            if function not in self.short
            and not all(name and f"{function.split('::')[0]}::{name}" in self.short for name in names)
        }


GRIDS = pytest.StashKey[Grids]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which tests are exhaustive, before those that `-m` excludes are gone.

    A name with the address of an object differs in each process, and xdist then runs no test.
    """
    addressed = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addressed:
        raise pytest.UsageError(f"The name of a test contains the address of an object; give it ids: {addressed[0]}")
    config.stash[GRIDS] = Grids(items)


class _FailuresAtOnce:
    """Prints a line for each failure when it happens: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            lines = report.longreprtext.splitlines()
            errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
            terminal.write("\n")
            for line in (f"FAILED {report.nodeid} ({report.when})", *errors[:5]):
                terminal.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once, where the terminal is: not in the processes of xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(config))


@pytest.fixture(autouse=True)
def _logs_as_at_the_start() -> None:
    """Forget how a test before this one wanted logs: one that runs an engine in this process leaves them at warnings."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the .gguf file of SmolLM2-135M-Instruct, fetched once into the user's cache."""
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """Return a private directory whose path is short: that of a Unix socket has at most 107 bytes, and tmp_path is long."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def make_socket(socket_directory: Path) -> Callable[[str], str]:
    """Return a maker of addresses: name -> "unix:/path"."""
    return lambda name: f"unix:{socket_directory}/{name}.sock"
