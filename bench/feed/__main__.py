"""The command line; see the package's docstring."""

import sys

from bench.feed.cli import main

if __name__ == "__main__":
    sys.exit(main())
