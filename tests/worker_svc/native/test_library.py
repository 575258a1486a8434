"""The native library: found, compiled, or missing; never half written, and never keeping a process from ending."""

import contextlib
import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from tests.worker_svc.native.native_programs import RUNNABLE, product, team_of
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.native import build, library
from tetrad.worker_svc.native.library import NoLibraryError, best_target, library_name, load_library
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import pack_float

ELF_AARCH64 = 183
"""Of the field e_machine."""
SLOW = 60
"""Seconds that a process of these tests may take on a busy machine."""


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch, tmp_path):
    """Each test has a cache and an installation of its own, both empty."""
    load_library(best_target())  # the real one stays: tests that need a compiled file copy it
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(library, "load_library", load_library.__wrapped__)


@pytest.fixture(scope="session")
def compiled() -> bytes:
    """The kernels for this machine, which the worker has compiled into the user's cache."""
    return Path(load_library(best_target())._name).read_bytes()


def no_compiler(monkeypatch) -> None:
    monkeypatch.setattr(library.shutil, "which", lambda name: None)


def fake_compiler(monkeypatch, tmp_path: Path, script: str) -> Path:
    """Put a compiler of this script first; it notes every call in the file that is returned."""
    path, calls = tmp_path / "fake" / "g++", tmp_path / "calls"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho called >> {calls}\nwhile [ "$1" != -o ]; do shift; done\nout="$2"\n{script}\n')
    path.chmod(0o700)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return calls


def copying_compiler(monkeypatch, tmp_path: Path, compiled: bytes) -> Path:
    """A fake compiler that copies what a real one has made."""
    (tmp_path / "made").write_bytes(compiled)
    return fake_compiler(monkeypatch, tmp_path, f'cp {tmp_path / "made"} "$out"')


def open_library():
    return load_library.__wrapped__(best_target())


def replace(path: Path, content: bytes) -> None:
    """By another file: this process has the old one mapped, and would die of its being cut short."""
    path.unlink()
    path.write_bytes(content)


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "native" / library_name(best_target())


def test_what_is_compiled_once_is_found_again(monkeypatch, tmp_path, compiled):
    calls = copying_compiler(monkeypatch, tmp_path, compiled)

    lanes = {open_library().tetrad_lanes() for _ in range(3)}

    assert lanes <= {8, 16}
    assert calls.read_text().count("called") == 1
    assert list(cached(tmp_path).parent.iterdir()) == [cached(tmp_path)]


def test_other_sources_or_flags_are_another_file(monkeypatch, tmp_path):
    names = {library_name(target) for target in library.targets()}
    monkeypatch.setattr(library, "_FLAGS", ("-O2",))
    names |= {library_name(target) for target in library.targets()}
    (tmp_path / "program.cpp").write_text("int x;")
    monkeypatch.setattr(library, "_SOURCES", tmp_path)
    names |= {library_name(target) for target in library.targets()}

    assert len(names) == 3 * len(library.targets())


@pytest.mark.parametrize("cut", [0, 10, 5000, -40, -1])
def test_a_file_that_was_cut_short_is_compiled_anew(monkeypatch, tmp_path, compiled, cut):
    calls = copying_compiler(monkeypatch, tmp_path, compiled)
    open_library()
    replace(cached(tmp_path), cached(tmp_path).read_bytes()[:cut])

    with capture_logs() as logs:
        assert open_library().tetrad_lanes() in (8, 16)

    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["native.broken"]
    assert calls.read_text().count("called") == 2


def test_a_damaged_file_is_compiled_anew(monkeypatch, tmp_path, compiled):
    copying_compiler(monkeypatch, tmp_path, compiled)
    open_library()
    damaged = bytearray(cached(tmp_path).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    replace(cached(tmp_path), damaged)

    assert open_library().tetrad_lanes() in (8, 16)
    assert cached(tmp_path).read_bytes() != damaged


@pytest.mark.parametrize("blocked", ["a file", "a link to nowhere"])
def test_without_a_cache_the_kernels_are_compiled_for_the_process_alone(monkeypatch, tmp_path, compiled, blocked):
    copying_compiler(monkeypatch, tmp_path, compiled)
    if blocked == "a file":
        (tmp_path / "cache").write_text("in the way")
    else:
        (tmp_path / "cache").symlink_to("/proc/nowhere")

    with capture_logs() as logs:
        assert open_library().tetrad_lanes() in (8, 16)

    [warning] = [log for log in logs if log["log_level"] == "warning"]
    assert (warning["event"], warning["directory"]) == ("native.cache_unusable", str(tmp_path / "cache" / "native"))


def test_a_cache_in_a_file_system_that_runs_nothing_is_done_without(monkeypatch, tmp_path, compiled):
    """As mounted with noexec: the file is written, and cannot be mapped."""
    copying_compiler(monkeypatch, tmp_path, compiled)
    load = library.ctypes.CDLL

    def refuse_cache(path):
        if path.startswith(str(tmp_path / "cache")):
            raise OSError("failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(library.ctypes, "CDLL", refuse_cache)

    for _ in range(2):
        assert open_library().tetrad_lanes() in (8, 16)


def test_nowhere_to_write_is_one_line(monkeypatch, tmp_path, compiled):
    copying_compiler(monkeypatch, tmp_path, compiled)
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setattr(library.tempfile, "tempdir", str(tmp_path / "missing"))

    with pytest.raises(NoLibraryError, match="no directory for a compiled library"):
        open_library()


def test_a_compiler_that_fails_is_named_with_its_first_error(monkeypatch, tmp_path):
    fake_compiler(monkeypatch, tmp_path, 'echo note >&2; printf "x.h:1: error: no room \\377\\n" >&2; echo more >&2; exit 1')

    with pytest.raises(NoLibraryError, match=r"fake/g\+\+ failed: x.h:1: error: no room"):
        open_library()

    assert list(cached(tmp_path).parent.iterdir()) == []


def test_a_compiler_that_does_not_end_is_given_up(monkeypatch, tmp_path):
    fake_compiler(monkeypatch, tmp_path, "exec sleep 100")
    monkeypatch.setattr(library, "_TIMEOUT_S", 0.2)

    with pytest.raises(NoLibraryError, match="timed out"):
        open_library()


def test_what_came_with_the_installation_needs_no_compiler(monkeypatch, tmp_path, compiled):
    copying_compiler(monkeypatch, tmp_path, compiled)
    library.compile_library(best_target(), tmp_path / "prebuilt")
    no_compiler(monkeypatch)

    assert open_library().tetrad_lanes() in (8, 16)
    assert not (tmp_path / "cache").exists()


def test_build_makes_all_targets_or_those_asked_for(monkeypatch, tmp_path, compiled, capsys):
    copying_compiler(monkeypatch, tmp_path, compiled)
    first = library.targets()[0]

    assert build.main(["--target", first.name]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "prebuilt" / library_name(first))]
    assert build.main([]) == 0
    made = {path.name for path in (tmp_path / "prebuilt").iterdir()}
    assert made == {library_name(target) for target in library.targets()}


def test_clang_compiles_the_kernels(tmp_path):
    """As on a host without GCC; the products are those of the same numbers."""
    if shutil.which("clang++") is None:
        pytest.skip("clang++ (Debian's package clang) is missing")
    compiled_by_clang = dataclasses.replace(best_target(), compilers=("clang++",))
    kernels = ctypes.CDLL(str(library.compile_library(compiled_by_clang, tmp_path)))
    library._declare(kernels)
    team = Team(kernels, 1)
    weight, x = torch.randn(40, 96), torch.randn(9, 96)

    found = product(team, pack_float(team, weight), x)

    torch.testing.assert_close(found, (x.double() @ weight.double().T).float())


def test_build_compiles_for_another_kind_of_processor(monkeypatch, tmp_path, capsys):
    """Compiled without optimization: make wheel-aarch64 has the flags of every target."""
    if shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip("aarch64-linux-gnu-g++ (Debian's package g++-aarch64-linux-gnu) is missing")
    monkeypatch.setattr(library, "_FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC", "-pthread"))

    assert build.main(["--machine", "aarch64", "--target", "armv8.2"]) == 0

    [made] = map(Path, capsys.readouterr().out.split())
    header = made.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == ELF_AARCH64


def test_each_machine_of_a_family_finds_the_best_library_that_it_runs(monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    chosen = []
    for features in ("fp asimd aes crc32 atomics asimddp", "fp asimd crc32"):
        monkeypatch.setattr(library, "_cpu_flags", lambda: frozenset(features.split()))  # noqa: B023 - called in this turn
        chosen.append(best_target().name)

    assert chosen == ["armv8.2", "armv8"]


def test_build_names_the_targets_of_a_machine(capsys):
    with pytest.raises(SystemExit):
        build.main(["--machine", "aarch64", "--target", "avx2"])

    assert "--target avx2: the machine has the targets armv8.2, armv8" in capsys.readouterr().err


def test_build_says_why_it_fails(monkeypatch, capsys):
    no_compiler(monkeypatch)

    assert build.main([]) == 1
    assert "there is no C++ compiler" in capsys.readouterr().err


def test_two_processes_may_compile_at_once(tmp_path, compiled):
    """The compiler waits for both to have begun; whoever is last replaces a whole file by a whole file."""
    (tmp_path / "made").write_bytes(compiled)
    script = textwrap.dedent("""
        import sys, pathlib
        from tetrad.worker_svc.native import library
        library._PREBUILT = pathlib.Path(sys.argv[1]) / "prebuilt"
        print(library.load_library(library.best_target()).tetrad_lanes())
    """)
    with pytest.MonkeyPatch.context() as patch:
        barrier = tmp_path / "barrier"
        os.mkfifo(barrier)
        # Opening a pipe waits for its other side: the first opens it to read, the second to write.
        meet = f"if mkdir {tmp_path}/first 2>/dev/null; then read -r x < {barrier}; else echo x > {barrier}; fi"
        calls = fake_compiler(patch, tmp_path, f'{meet}; cp {tmp_path / "made"} "$out"')
        environment = {**os.environ, "TETRAD_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, "-c", script, str(tmp_path)]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
        outputs = [process.communicate(timeout=SLOW)[0].split()[-1] for process in both]

    assert set(outputs) <= {"8", "16"}
    assert calls.read_text().count("called") == 2
    assert list(cached(tmp_path).parent.iterdir()) == [cached(tmp_path)]


def test_without_a_compiler_models_run_through_torch(monkeypatch, tmp_path, tiny_llama, make_driver, assert_greedy):
    no_compiler(monkeypatch)
    monkeypatch.setattr("tetrad.worker_svc.devices.cpu_models.load_library", load_library.__wrapped__)
    with capture_logs() as logs:
        device = CpuDevice(WorkerSettings(threads=1))
    driver = make_driver(device.load_model(LoadRequest(str(tiny_llama[0]), tiny_llama[0]), lambda *_: None))
    driver.add(0, [1, 2, 3])

    output = driver.generate(4)[0]

    assert_greedy(tiny_llama[1], [1, 2, 3], output)
    [warning] = [log for log in logs if log["log_level"] == "warning"]
    assert warning["event"] == "native.unavailable"
    assert "there is no C++ compiler" in warning["reason"]
    with pytest.raises(ModelError, match="needs the native kernels"):
        device.load_model(LoadRequest(str(tiny_llama[0]), tiny_llama[0], quantization="int8"), lambda *_: None)


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
def test_types_of_keys_and_values_that_torch_has_not_are_refused(kv_cache_dtype, tiny_llama):
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch", kv_cache_dtype=kv_cache_dtype))

    with pytest.raises(ModelError, match=f"kv_cache_dtype {kv_cache_dtype} needs the native kernels"):
        device.load_model(LoadRequest(str(tiny_llama[0]), tiny_llama[0]), lambda *_: None)


def test_native_kernels_that_are_asked_for_and_cannot_be_had_are_one_line(monkeypatch):
    no_compiler(monkeypatch)
    monkeypatch.setattr("tetrad.worker_svc.devices.cpu_models.load_library", load_library.__wrapped__)

    with pytest.raises(ModelError, match="native kernels cannot be had: there is no C") as caught:
        CpuDevice(WorkerSettings(cpu_kernels="native"))
    assert "\n" not in caught.value.message


def test_more_threads_than_the_system_has_room_for_are_one_line():
    """In a process of its own, which may have no more address space than it has."""
    run_python("""
        import resource
        from tests.worker_svc.native.native_programs import RUNNABLE, product, team_of
        from tetrad.services.errors import FailedPrecondition
        team_of(RUNNABLE[0], 2)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
        try:
            team_of(RUNNABLE[0], 5000)
        except FailedPrecondition as error:
            assert "5000" in error.message, error
        else:
            raise AssertionError
        team_of(RUNNABLE[0], 2)
    """)


def test_a_step_under_way_does_not_keep_the_process_from_ending():
    """The compute thread is a daemon; the team's threads are joined when a team is dropped, but not at the process's end."""
    run_python("""
        import threading, torch
        from tests.worker_svc.native.native_programs import RUNNABLE, NO_HEADS, team_of
        from tetrad.worker_svc.native.program_builder import ProgramBuilder
        from tetrad.worker_svc.native.weights import pack_float
        team = team_of(RUNNABLE[0], 3)
        builder = ProgramBuilder(team)
        source, target = builder.buffer(128), builder.buffer(128)
        matrix = pack_float(team, torch.zeros(128, 128))
        for _ in range(2500):
            builder.linear(matrix, None, source, target)
        program = builder.build("long", NO_HEADS)
        begun, call = threading.Event(), team.library.tetrad_run
        def run(*arguments):
            begun.set()
            call(*arguments)  # minutes
        team.library.tetrad_run = run
        threading.Thread(target=program.run, args=[100_000], daemon=True).start()
        begun.wait()
    """)


def run_python(script: str) -> None:
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TETRAD_CACHE_DIR"}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=root, env=environment)
    try:
        assert process.wait(timeout=SLOW) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_a_team_that_is_dropped_leaves_no_threads():
    """Threads of other tests may end meanwhile."""
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    team = team_of(RUNNABLE[0], 4)
    threads = set(tasks.iterdir()) - before

    assert len(threads) == 3
    del team
    assert not threads & set(tasks.iterdir())
