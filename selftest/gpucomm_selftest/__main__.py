"""`python -m gpucomm_selftest`: the same as the console script."""

import sys

from gpucomm_selftest.cli import main

if __name__ == "__main__":
    sys.exit(main())
