"""Native library: finds the compiled kernels, or compiles them, and loads them.

One C++ translation unit (src/program.cpp), compiled in a few seconds for the widest vectors that this machine has, kept in the
user's cache under a hash of everything that it was made from. Images that carry no compiler carry the libraries of all kinds of
machines, `python -m tetrad.worker_svc.native.build`. Where there is neither a library nor a compiler, models run through torch.
"""

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tetrad.services.log import get_logger
from tetrad.services.model_files import CacheSettings
from tetrad.worker_svc.native.structures import Heads, MatrixFields, Operation, Step

_SOURCES = Path(__file__).parent / "src"
_PREBUILT = Path(__file__).parent / "lib"
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_S = 180

log = get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine.

    Attributes:
        name: part of the library's file name.
        flags: that choose its instructions.
        needs: what /proc/cpuinfo must list.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_X86_TARGETS = (
    Target(
        "avx512",
        ("-march=x86-64-v4", "-mavx512vnni"),
        frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}),
    ),
    Target("avx2", ("-march=x86-64-v3",), frozenset({"avx2", "fma", "f16c", "bmi2"})),
    Target("x86-64", ("-march=x86-64",)),
)


class NoLibraryError(Exception):
    """The kernels cannot be had here; the message says why in one line."""


def targets() -> Sequence[Target]:
    """Return the targets of this kind of processor, the best first."""
    if platform.machine() in ("x86_64", "AMD64"):
        return _X86_TARGETS
    return (Target(platform.machine(), ("-mcpu=native",)),)


def best_target() -> Target:
    """Return the best target that this machine can run."""
    flags = _cpu_flags()
    return next(target for target in targets() if target.needs <= flags)


@functools.cache
def load_library(target: Target) -> ctypes.CDLL:
    """Return the kernels for a kind of machine, compiled now if need be; NoLibraryError if that cannot be."""
    name = library_name(target)
    path = next((path for path in (_PREBUILT / name, _cache_dir() / name) if path.is_file()), None)
    library = ctypes.CDLL(str(path or compile_library(target, _cache_dir())))
    _declare(library)
    log.info("native.loaded", target=target.name, lanes=library.tetrad_lanes())
    return library


def compile_library(target: Target, directory: Path) -> Path:
    """Compile the kernels into `directory` and return the file, which appears whole or not at all."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoLibraryError(f"there is no C++ compiler ({', '.join(_COMPILERS)})")
    path = directory / library_name(target)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *_FLAGS, *target.flags, "-o", str(made), str(_SOURCES / "program.cpp")]
            log.info("native.compiling", target=target.name, compiler=compiler)
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
            made.replace(path)
    except subprocess.CalledProcessError as error:
        raise NoLibraryError(f"{compiler} failed: {_first_error(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLibraryError(f"{compiler} could not be run: {error}") from error
    return path


def library_name(target: Target) -> str:
    """Return the file name of a target's library: another one whenever sources or flags change."""
    digest = hashlib.sha256(repr((_FLAGS, target.flags)).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return f"kernels-{target.name}-{digest.hexdigest()[:16]}.so"


def prebuilt_dir() -> Path:
    """Return where libraries lie that come with an installation."""
    return _PREBUILT


def _cache_dir() -> Path:
    return CacheSettings().directory() / "native"


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


def _first_error(output: str) -> str:
    lines = output.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")[:300]


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_MATRIX = ctypes.POINTER(MatrixFields)
_SIGNATURES: Mapping[str, tuple[object, list[object]]] = {
    "tetrad_lanes": (_INT, []),
    "tetrad_team_new": (_POINTER, [_INT]),
    "tetrad_team_delete": (None, [_POINTER]),
    "tetrad_matrix_size_bytes": (_LONG, [_MATRIX]),
    "tetrad_activations_size_bytes": (_LONG, [_LONG]),
    "tetrad_pack_float": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_pack_gguf": (None, [_POINTER, _MATRIX, _INT, _POINTER, _LONG]),
    "tetrad_pack_int8": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_unpack": (None, [_MATRIX, _POINTER, _LONG, _POINTER]),
    "tetrad_program_new": (_POINTER, [ctypes.POINTER(Operation), _LONG, _POINTER, _LONG, Heads]),
    "tetrad_program_delete": (None, [_POINTER]),
    "tetrad_run": (None, [_POINTER, _POINTER, ctypes.POINTER(Step), _POINTER, _POINTER]),
}
