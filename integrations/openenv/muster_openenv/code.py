"""Command `muster-openenv`: prints the digest of an installed package's code, for the option `code`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from protocol.errors import MusterError
from rollouts.environments.code_digest import code_digest


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="muster-openenv", description="Prints the digest of a package's code.")
    parser.add_argument("package", help="the environment's package, such as maze_env")
    try:
        sys.stdout.write(code_digest(parser.parse_args(arguments).package) + "\n")
    except MusterError as error:
        sys.stderr.write(f"error: {error.detail}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(1)


if __name__ == "__main__":
    main()
