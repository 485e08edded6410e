"""`python -m discovery`: the same as `muster discovery`."""

from discovery.cli import app

app(prog_name="python -m discovery")
