"""Builds the wheels of tetrad and tetrad-client into dist/. Run by `make wheel`.

With a C++ compiler, on x86-64 and ARM, tetrad's wheel has the native kernels for each kind of processor
(worker_svc/native/library.py chooses one at start) and is tagged with the glibc version that they need: manylinux_X_Y_x86_64.
--machine aarch64 compiles for ARM on another machine with aarch64-linux-gnu-g++ (Debian's package g++-aarch64-linux-gnu).
Without a compiler, or with --no-kernels, the wheel is pure Python: its kernels are compiled when a model is first loaded. The
wheels contain tracked files only, because they are built from a copy of these.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CLIENT = Path("clients/python")
_NATIVE = ("g++", "clang++", "c++")
_COMPILERS = {"x86_64": _NATIVE, "aarch64": _NATIVE}
_CROSS_COMPILERS = {"aarch64": ("aarch64-linux-gnu-g++",)}


def main() -> None:
    """Build both wheels and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go")
    parser.add_argument("--no-kernels", action="store_true", help="build the pure wheel")
    parser.add_argument(
        "--machine", choices=_COMPILERS, default=platform.machine(), help="kind of processor; default: this one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        copy_tracked_files(source)
        tag = None if options.no_kernels else add_kernels(source, options.machine)
        for directory, platform_tag in ((source, tag), (source / _CLIENT, None)):
            sys.stdout.write(f"{build_wheel(directory, options.out.resolve(), platform_tag)}\n")


def copy_tracked_files(target: Path) -> None:
    """Copy the files that git tracks to `target`; symbolic links stay links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        original, copy = ROOT / name, target / name
        if original.is_symlink() or original.is_file():  # a tracked file may be missing in the working tree
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(original, copy, follow_symlinks=False)


def add_kernels(source: Path, machine: str) -> str | None:
    """Compile the kernels into a copy of the sources; return the wheel's platform tag, or None without kernels."""
    compilers = _COMPILERS.get(machine, ()) if machine == platform.machine() else _CROSS_COMPILERS.get(machine, ())
    if not any(map(shutil.which, compilers)):
        if machine != platform.machine():
            sys.exit(f"wheels: --machine {machine} needs a cross compiler: {', '.join(compilers) or 'none is known'}")
        sys.stderr.write(
            f"wheels: there is no C++ compiler for {machine}: the wheel has no compiled kernels. Each machine that it is"
            " installed on needs a compiler, or decoding on a CPU is about 8 times slower.\n"
        )
        return None
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "tetrad.worker_svc.native.build", "--machine", machine]
    made = subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    major, minor = max(version for path in made for version in _glibc_versions(Path(path)))
    return f"manylinux_{major}_{minor}_{machine}"


def build_wheel(source: Path, out: Path, platform_tag: str | None) -> Path:
    """Build the wheel of a source directory and return the wheel's path."""
    options = [f"-C--build-option=--plat-name={platform_tag}"] if platform_tag else []
    before = set(_wheels(out))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", *options, "--outdir", str(out), str(source)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    if result.returncode:
        sys.exit(result.stdout[-4000:] + result.stderr[-4000:])
    name = re.search(r"Successfully built (\S+\.whl)", result.stdout)
    [path] = {out / name[1]} if name else set(_wheels(out)) - before
    return path


def _wheels(directory: Path) -> Iterable[Path]:
    return directory.glob("*.whl")


def _glibc_versions(library: Path) -> set[tuple[int, int]]:
    """Return the versions of glibc's symbols that a library needs, by their names in its version table."""
    return {(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())}


if __name__ == "__main__":
    main()
