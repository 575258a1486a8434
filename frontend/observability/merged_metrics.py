"""Merged metrics: merges the metrics of several frontends into one page of Prometheus' text format, with a label for each.

Counters are not summed: a sum would decrease when one of the processes ends, and Prometheus would treat this as a restart.
"""

from collections.abc import Mapping

_LABEL = "frontend"
_HELP = "# HELP "


def merged(pages: Mapping[int, bytes]) -> bytes:
    """Return the merged page.

    Args:
        pages: the page of each frontend, by its number; they may have different families of metrics.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in sorted(pages.items()):
        family, is_new = "", False
        for line in page.decode().split("\n")[:-1]:  # not splitlines: a label may contain other separators
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
    """Return a line `name{labels} value` with the label of the frontend added."""
    name, brace, rest = sample.partition("{")
    if not brace or " " in name:
        name, _, value = sample.partition(" ")
        return f'{name}{{{_LABEL}="{number}"}} {value}'
    return f'{name}{{{_LABEL}="{number}",{rest}'
