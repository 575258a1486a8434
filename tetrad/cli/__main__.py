"""`python -m tetrad.cli`: the `tetrad` command where it is not on the PATH."""

import sys

from tetrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
