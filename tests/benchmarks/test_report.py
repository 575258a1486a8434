"""The report: a command rewrites its own section and no other."""

import importlib
from pathlib import Path

import pytest

from benchmarks.options import Options
from benchmarks.report import ORDER, Bar, Section, write_section


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(rounds=5, quick=False, with_peers=False, out=tmp_path / "results", command="python -m benchmarks.some")


def results(options: Options) -> str:
    return (options.out / "RESULTS.md").read_text()


def test_a_section_is_replaced_and_the_others_stay(options):
    write_section("decode", Section("Decoding", ["old figures"]), options)
    write_section("prefill", Section("Prefill", ["prefill figures"]), options)

    write_section("decode", Section("Decoding", ["new figures"]), options)

    text = results(options)
    assert "old figures" not in text
    assert text.count("## Decoding") == 1
    assert "prefill figures" in text


def test_sections_stand_in_one_order_whatever_the_order_of_runs(options):
    for name in reversed(ORDER):
        write_section(name, Section(name), options)

    titles = [line.removeprefix("## ") for line in results(options).splitlines() if line.startswith("## ")]

    assert titles == list(ORDER)


def test_a_section_says_how_it_was_measured(options):
    write_section("decode", Section("Decoding"), options)

    assert "`python -m benchmarks.some` on " in results(options)
    assert "rounds: 5" in results(options)


@pytest.mark.parametrize(
    ("found", "at_most", "holds"), [(2.0, False, True), (1.9, False, False), (2.0, True, True), (2.1, True, False)]
)
def test_a_bar_holds_on_its_good_side(found, at_most, holds):
    assert Bar("ratio", 2.0, found, at_most=at_most).holds is holds


@pytest.mark.parametrize("name", ORDER)
def test_every_section_has_its_command(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)
