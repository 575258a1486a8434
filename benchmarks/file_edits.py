"""File edits: output tokens/s with and without drafts, over HTTP, where a model repeats a source file with a changed name.

`python -m benchmarks.file_edits`. The second model, which can do this. One stack decodes plainly, and with `prediction`; one
drafts n-grams, one drafts suffixes. All stacks run at the same time and are measured alternately within a round.
"""

from contextlib import ExitStack

from benchmarks.figures import spread
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import QWEN, home
from benchmarks.report import Section, add_bars, write_section
from benchmarks.speculation import (
    CONFIGS,
    NGRAM,
    PREDICTION,
    SUFFIX,
    Rates,
    add_rates,
    answer_rates,
    bars_of_task,
    gain,
    open_stacks,
    tasks,
)


def measure(urls: dict[str, str], options: Options) -> Rates:
    """Return system -> rates, one value per round; a round before the first is not counted."""
    found: Rates = {}
    [task] = [task for task in tasks() if task.name == "file"]
    for number in range(-1, options.rounds):
        rates = answer_rates(urls, {}, task)
        if number >= 0:
            add_rates(found, rates)
            print(f"round {number + 1}/{options.rounds} is done", flush=True)
    return found


def _section(found: Rates) -> Section:
    section = Section("Speculative decoding of a file edit: Qwen2.5-Coder-0.5B on the CPU, output tokens/s")
    section.text(
        "The answer, 192 tokens, repeats [a Python file](data/inventory.txt) with a class renamed: greedy, batch 1, behind the "
        "first token; the same with and without drafts. n-gram: of 2 to 4 tokens, 8 drafts at most. prediction: the file."
    )
    section.table([*found], [[spread(rates) for rates in found.values()]])
    drafted = (NGRAM, SUFFIX, PREDICTION)
    section.table([f"{name} / plain" for name in drafted], [[f"{gain(found, name):.2f}" for name in drafted]])
    add_bars(section, bars_of_task("file", found))
    return section


def main() -> None:
    """Measure, and write the section into RESULTS.md."""
    options = read_options("file_edits", __doc__)
    file = (home() / QWEN.gguf).resolve()
    if not file.is_file():
        raise SystemExit(f"There is no {file}; make peers fetches the model.")
    with ExitStack() as exits:
        found = measure(open_stacks(exits, CONFIGS, model=str(file)), options)
    write_section("file_edits", _section(found), options)


if __name__ == "__main__":
    main()
