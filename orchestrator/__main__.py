"""`python -m orchestrator`: the same as `muster orchestrator`."""

from orchestrator.cli import app

app(prog_name="python -m orchestrator")
