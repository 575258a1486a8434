"""`import tetrad` in a user's program, from any directory."""

import subprocess
import sys
from pathlib import Path

import tetrad


def test_a_program_beside_a_clone_imports_the_installed_package(tmp_path: Path) -> None:
    """A clone's own directory is called tetrad and has no __init__.py: Python could take it for a namespace package."""
    (tmp_path / "tetrad" / "docs").mkdir(parents=True)
    program = tmp_path / "program.py"
    program.write_text("import tetrad\nprint(tetrad.__file__)\n")

    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(tetrad.__file__)
