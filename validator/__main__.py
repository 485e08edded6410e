"""Entry point of `python -m validator`, which offers the commands of `validator/cli.py`."""

from validator.cli import app

app(prog_name="python -m validator")
