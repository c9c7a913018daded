"""`python -m headrace` and the script `headrace`. Ctrl-C ends them quietly, also while their modules are imported;
before this one is, Python itself answers it.
"""

import sys

from headrace.exit_status import INTERRUPTED


def main() -> None:
    """Entry point of the script `headrace`."""
    try:
        from headrace.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
