"""Makes `tests.chaos` importable however pytest is started: the harness is a package that is run by itself, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
