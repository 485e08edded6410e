"""`muster token`: bearer tokens for a pool's REST API."""

from __future__ import annotations

import getpass
import sys

import typer

from cli.output.printing import JsonOption, note, show_fields, show_result
from protocol.http.tokens import hash_token, new_token

app = typer.Typer(no_args_is_help=True, help="Bearer tokens for a pool's REST API.")


@app.command()
def new(as_json: JsonOption = False) -> None:
    """Create a token, and print the hash for the orchestrator's settings."""
    token = new_token()
    show_fields({"token": token, "hash": hash_token(token)}, as_json=as_json)
    note("the token is not shown again; put its hash under [[orchestrator.tokens]] with a name and a scope")


@app.command(name="hash")
def hash_(as_json: JsonOption = False) -> None:
    """Print the hash of an existing token, read from a prompt or standard input."""
    token = getpass.getpass("Token (not shown): ") if sys.stdin.isatty() else sys.stdin.readline(200)
    hashed = hash_token(token)
    show_result(hashed, {"hash": hashed}, as_json=as_json)
