"""Long contexts: output tokens/s of a batch whose sequences have 1,000 tokens each, against the same batch with short contexts.

`python -m benchmarks.contexts`. Tetrad is called over HTTP, with long and short contexts alternately. Prompts are cached after
the first round, so that only decoding is measured. decode.py measures peers.
"""

from collections.abc import Sequence

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import running
from benchmarks.systems import TETRAD_FLOAT32, TETRAD_GGUF, Server

_SHORT = 17
_LONG = 1000
_STEPS = 24
_MIN_RATIO = 0.6
_FLAGS = {
    TETRAD_GGUF: ("--dtype", "auto"),
    TETRAD_FLOAT32: ("--dtype", "float32"),
    f"{TETRAD_FLOAT32}, keys and values in float16": ("--dtype", "float32", "--kv-cache-dtype", "float16"),
    f"{TETRAD_FLOAT32}, keys and values in int8": ("--dtype", "float32", "--kv-cache-dtype", "int8"),
}

Pair = tuple[list[float], list[float]]
"""Tokens/s with (short, long) contexts, one value per round."""


def measure(flags: Sequence[str], batch: int, rounds: int) -> Pair:
    """Return the rates with one form of the weights and one data type of keys and values, both given by `flags`."""
    found: Pair = ([], [])
    with running("--device", "cpu", *flags) as stack:
        server = Server(stack.url)
        for context in (_SHORT, _LONG):
            server.decode(batch, 2, context)
        for _ in range(rounds):
            for context, rates in zip((_SHORT, _LONG), found, strict=True):
                rates.append(server.decode(batch, _STEPS, context))
    return found


def _section(found: dict[str, Pair], batch: int) -> Section:
    section = Section(f"Long contexts: output tokens/s at batch {batch}")
    section.text(f"SmolLM2-135M-Instruct over HTTP; contexts of {_LONG:,} tokens, no two alike, against {_SHORT}.")
    section.table(["", "short contexts", f"contexts of {_LONG:,}", "ratio"], [_row(name, pair) for name, pair in found.items()])
    bars = [
        Bar(f"{name}: contexts of {_LONG:,} against short ones", _MIN_RATIO, median(ratios(long, short)))
        for name, (short, long) in found.items()
    ]
    add_bars(section, bars)
    return section


def _row(name: str, pair: Pair) -> Sequence[str]:
    short, long = pair
    return name, spread(short), spread(long), spread(ratios(long, short), 2)


def main() -> None:
    """Measure and write the section of the report."""
    options: Options = read_options("contexts", __doc__)
    batch = 8 if options.quick else 32
    forms = {name: flags for name, flags in _FLAGS.items() if not options.quick or name == TETRAD_GGUF}
    found = {name: measure(flags, batch, options.rounds) for name, flags in forms.items()}
    write_section("contexts", _section(found, batch), options)


if __name__ == "__main__":
    main()
