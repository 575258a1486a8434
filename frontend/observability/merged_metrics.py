"""Merged metrics: joins the metrics of several frontends in one page of Prometheus' text format; a label names each.

Counters are not added up: a sum would fall when one of the processes ends, and Prometheus would take it for a restart of all.
"""

from collections.abc import Mapping

_LABEL = "frontend"
_HELP = "# HELP "


def merged(pages: Mapping[int, bytes]) -> bytes:
    """Return one page.

    Args:
        pages: of each frontend, by its number; they may have different families.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in sorted(pages.items()):
        family, is_new = "", False
        for line in page.decode().splitlines():
            if line.startswith(_HELP):
                family = line[len(_HELP) :].partition(" ")[0]
                is_new = family not in heads
                heads.setdefault(family, [])
                samples.setdefault(family, [])
            if not line.startswith("#"):
                samples[family].append(_labelled(line, number))
            elif is_new:
                heads[family].append(line)
    lines = [line for family, head in heads.items() for line in (*head, *samples[family])]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, number: int) -> str:
    """Return a line `name{labels} value` with one label more."""
    name, brace, rest = sample.partition("{")
    if not brace or " " in name:
        name, _, value = sample.partition(" ")
        return f'{name}{{{_LABEL}="{number}"}} {value}'
    return f'{name}{{{_LABEL}="{number}",{rest}'
