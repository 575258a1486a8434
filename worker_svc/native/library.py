"""Native library: finds the compiled kernels, or compiles them, and loads them.

The kernels are one C++ translation unit (src/program.cpp), compiled in a few seconds for the widest vectors of this machine,
and kept in the user's cache under a hash of sources and flags. Images without a compiler contain the libraries of all kinds of
machines (`python -m tetrad.worker_svc.native.build`). Without a library and without a compiler, models run through torch. A
library ends with its own digest, because loading a truncated library would crash the process.
"""

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tetrad.services.hub.model_files import CacheSettings
from tetrad.services.log import get_logger
from tetrad.worker_svc.native.structures import Heads, MatrixFields, Operation, Step

_SOURCES = Path(__file__).parent / "src"
_PREBUILT = Path(__file__).parent / "lib"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-shared",
    "-fPIC",
    "-pthread",
    "-static-libgcc",
)
_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_S = 180
_DIGEST_BYTES = 32

log = get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine that the kernels are compiled for.

    Attributes:
        name: part of the library's file name.
        flags: compiler flags that choose the instructions.
        needs: processor features that /proc/cpuinfo must list.
        compilers: names of compilers; the first installed one is used.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    compilers: tuple[str, ...] = _COMPILERS


_X86_TARGETS = (
    Target(
        "avx512",
        ("-march=x86-64-v4", "-mavx512vnni"),
        frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}),
    ),
    Target("avx2", ("-march=x86-64-v3",), frozenset({"avx2", "fma", "f16c", "bmi2"})),
    Target("x86-64", ("-march=x86-64",)),
)
# asimddp: dot products of bytes; Neoverse N1 (Graviton2), Apple M1, Cortex-A76 and newer processors have them.
_ARM_TARGETS = (
    Target("armv8.2", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
    Target("armv8", ("-march=armv8-a",)),
)
_CROSS_COMPILERS = {"aarch64": ("aarch64-linux-gnu-g++",)}


class NoLibraryError(Exception):
    """The kernels cannot be loaded or compiled on this machine; the message gives the reason in one line."""


def targets(machine: str | None = None) -> Sequence[Target]:
    """Return the targets of a kind of processor (default: this machine's), the best first."""
    here = platform.machine()
    known = _targets_of(machine or here)
    if machine in (None, here):
        return known
    return [replace(each, compilers=_CROSS_COMPILERS.get(str(machine), ())) for each in known]


def _targets_of(machine: str) -> Sequence[Target]:
    if machine in ("x86_64", "AMD64"):
        return _X86_TARGETS
    if machine in ("aarch64", "arm64"):
        return _ARM_TARGETS
    return (Target(machine, ("-mcpu=native",)),)


def best_target() -> Target:
    """Return the best target that this machine can run."""
    flags = _cpu_flags()
    return next(target for target in targets() if target.needs <= flags)


@functools.cache
def load_library(target: Target) -> ctypes.CDLL:
    """Return the kernels for a target, and compile them if necessary; raise NoLibraryError if that is impossible."""
    name = library_name(target)
    kept = (_try_open(directory / name) for directory in (_PREBUILT, _cache_dir()))
    library = next((found for found in kept if found is not None), None) or _open_new(target)
    _declare(library)
    log.info("native.loaded", target=target.name, lanes=library.tetrad_lanes())
    return library


def compile_library(target: Target, directory: Path) -> Path:
    """Compile the kernels into `directory` and return the file, which is created atomically.

    Raises NoLibraryError if there is no compiler or it fails, OSError if the directory cannot be written.
    """
    compiler = _compiler_of(target)
    path = directory / library_name(target)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        made = Path(scratch) / path.name
        _run_compiler([compiler, *_FLAGS, *target.flags, "-o", str(made), str(_SOURCES / "program.cpp")])
        code = made.read_bytes()
        made.write_bytes(code + hashlib.sha256(code).digest())
        made.replace(path)
    return path


def library_name(target: Target) -> str:
    """Return the file name of a target's library; the name changes whenever sources or flags change."""
    digest = hashlib.sha256(repr((_FLAGS, target.flags)).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return f"kernels-{target.name}-{digest.hexdigest()[:16]}.so"


def compile_ahead(on_compile: Callable[[Target], None]) -> None:
    """Compile this machine's kernels into the user's cache unless they exist, so that a worker starts without compiling.

    Args:
        on_compile: called before the compiler starts, which runs for about 20 s; not called if nothing is compiled.

    Raises:
        NoLibraryError: the kernels cannot be compiled.
        OSError: the cache cannot be written.
    """
    target = best_target()
    if not any((directory / library_name(target)).is_file() for directory in (_PREBUILT, _cache_dir())):
        _compiler_of(target)  # raises before on_compile announces a compilation
        on_compile(target)
        compile_library(target, _cache_dir())


def prebuilt_dir() -> Path:
    """Return the directory of the libraries that are part of an installation."""
    return _PREBUILT


def _open_new(target: Target) -> ctypes.CDLL:
    """Compile the library into the cache, or for this process only if the cache is not usable, and open it."""
    directory = _cache_dir()
    log.info("native.compiling", target=target.name, directory=str(directory))
    try:
        return ctypes.CDLL(str(compile_library(target, directory)))
    except OSError as error:
        consequence = "the kernels are compiled at each start"
        log.warning("native.cache_unusable", directory=str(directory), reason=str(error), consequence=consequence)
    try:
        # A library that is mapped does not need its file any more.
        with tempfile.TemporaryDirectory() as scratch:
            return ctypes.CDLL(str(compile_library(target, Path(scratch))))
    except OSError as error:
        raise NoLibraryError(f"there is no directory for a compiled library: {error}") from error


def _try_open(path: Path) -> ctypes.CDLL | None:
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
            log.warning("native.broken", path=str(path), consequence="the kernels are compiled anew")
            return None
        return ctypes.CDLL(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log.warning("native.unreadable", path=str(path), reason=str(error), consequence="the kernels are compiled anew")
        return None


def _compiler_of(target: Target) -> str:
    """Return the path of a target's compiler; raise NoLibraryError if none is installed."""
    found = next((path for name in target.compilers if (path := shutil.which(name))), None)
    if found is None:
        raise NoLibraryError(f"there is no C++ compiler ({', '.join(target.compilers)})")
    return found


def _run_compiler(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise NoLibraryError(f"{command[0]} failed: {_first_error(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLibraryError(f"{command[0]} could not be run: {error}") from error


def _cache_dir() -> Path:
    return CacheSettings().directory() / "native"


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    # The line is called "flags" on x86 and "Features" on ARM.
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").partition(":")[2].split())


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
    "tetrad_has_split_products": (_INT, []),
    "tetrad_has_fixed_products": (_INT, []),
    "tetrad_has_pair_products": (_INT, []),
    "tetrad_team_new": (_POINTER, [_INT]),
    "tetrad_team_delete": (None, [_POINTER]),
    "tetrad_matrix_size_bytes": (_LONG, [_MATRIX]),
    "tetrad_matrix_num_spans": (_LONG, [_POINTER, _MATRIX]),
    "tetrad_prepared_size_bytes": (_LONG, [_MATRIX]),
    "tetrad_pack_float": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_pack_split": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_pack_fixed": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_pack_pairs": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_pack_gguf": (None, [_POINTER, _MATRIX, _INT, _POINTER, _LONG]),
    "tetrad_pack_quanta": (None, [_POINTER, _MATRIX, _POINTER, _POINTER, _POINTER]),
    "tetrad_pack_int8": (None, [_POINTER, _MATRIX, _POINTER]),
    "tetrad_unpack": (None, [_MATRIX, _POINTER, _LONG, _POINTER]),
    "tetrad_program_new": (_POINTER, [ctypes.POINTER(Operation), _LONG, _POINTER, _LONG, Heads]),
    "tetrad_program_delete": (None, [_POINTER]),
    "tetrad_run": (_INT, [_POINTER, _POINTER, ctypes.POINTER(Step), _POINTER, _POINTER]),
    "tetrad_shared_is_possible": (_INT, []),
    "tetrad_shared_join": (_INT, [_INT, _INT]),
    "tetrad_sums_size_bytes": (_LONG, [_INT]),
    "tetrad_sums_leave": (None, [_POINTER]),
    "tetrad_sums_add": (_INT, [_POINTER, _POINTER, _LONG]),
    "tetrad_sums_gather": (_INT, [_POINTER, _POINTER, _LONG, _POINTER]),
    "tetrad_orders_size_bytes": (_LONG, [_INT]),
    "tetrad_orders_leave": (None, [_POINTER]),
    "tetrad_orders_write": (_INT, [_POINTER, _INT, _POINTER, _LONG]),
    "tetrad_orders_read": (_INT, [_POINTER, _POINTER, _LONG]),
}
