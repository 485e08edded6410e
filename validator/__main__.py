"""`python -m validator`: the same as `muster validator`."""

from validator.cli import app

app(prog_name="python -m validator")
