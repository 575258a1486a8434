"""Texts of the model commands: formats sizes, counts and tables."""

from collections.abc import Sequence


def decimal_size(size_bytes: float) -> str:
    """Return a size in decimal units, for disks and downloads: "1.2 GB", "98 MB"."""
    return _scaled(size_bytes, ("bytes", "kB", "MB", "GB", "TB"), 1000)


def binary_size(size_bytes: float) -> str:
    """Return a size in binary units, for memory: "1.2 GiB", "45 KiB"."""
    return _scaled(size_bytes, ("bytes", "KiB", "MiB", "GiB", "TiB"), 1024)


def count(number: int) -> str:
    """Return a number of parameters as text: "135 million", "7.2 billion"."""
    if number >= 10**9:
        return f"{number / 10**9:.1f} billion"
    return f"{number / 10**6:.0f} million" if number >= 10**6 else f"{number:,}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row, with columns aligned to the left; the last column may have any width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _scaled(number: float, units: Sequence[str], base: int) -> str:
    for unit in units[:-1]:
        if number < base:
            return f"{number:.1f} {unit}" if number < 10 and unit not in units[:2] else f"{number:.0f} {unit}"
        number /= base
    return f"{number:.1f} {units[-1]}"
