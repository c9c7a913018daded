"""`python -m headrace.cli` is `headrace`."""

from headrace.cli.main import main

main()
