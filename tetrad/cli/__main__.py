"""`python -m tetrad.cli`: runs the `tetrad` command if it is not on the PATH."""

import sys

from tetrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
