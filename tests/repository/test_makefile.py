"""The Makefile gives the tests variables that no service reads: `tetrad serve` refuses an unknown TETRAD_ variable."""

import re
from pathlib import Path


def test_variables_of_the_tests_are_no_settings():
    text = (Path(__file__).parents[2] / "Makefile").read_text()
    assert re.findall(r"\bTETRAD_\w+", text) == []
