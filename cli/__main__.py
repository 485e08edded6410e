"""`python -m cli` is `muster`."""

from cli.main import main

main()
