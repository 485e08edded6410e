"""Finds the anvil binary and builds its command line. Anvil is installed from npm; this module downloads nothing."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

from ledger.errors import AnvilMissing

ANVIL_VARIABLE = "MUSTER_ANVIL"

_REPOSITORY = Path(__file__).resolve().parents[2]
_PACKAGES = ".tools/node_modules/@foundry-rs"


def find_anvil() -> Path:
    """Returns the anvil binary: `MUSTER_ANVIL`, else from the repository's `.tools`, else from PATH.

    The result is the ELF binary of the platform package. It is not the npm launcher, because a stopped launcher would
    leave its child process running.

    Raises:
        AnvilMissing: There is no anvil binary in these places.
    """
    named = os.environ.get(ANVIL_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise AnvilMissing(f"{ANVIL_VARIABLE} names {named}, which is not an executable file")
        return Path(named)
    for candidate in sorted((_REPOSITORY / _PACKAGES).glob("anvil-*/bin/anvil")):
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("anvil")
    if found is None:
        raise AnvilMissing(f"anvil is neither under {_REPOSITORY / _PACKAGES} nor on PATH")
    return Path(found)


def anvil_command(
    *, port: int, host: str, state: Path | None, block_time: timedelta | None, chain_id: int, accounts: int
) -> list[str]:
    """Returns the command line for an anvil with the same settings as the embedded chain."""
    command = [
        str(find_anvil()),
        *("--port", str(port), "--host", host, "--chain-id", str(chain_id), "--accounts", str(accounts)),
        *("--balance", "10000", "--base-fee", str(10**9), "--gas-limit", "30000000", "--order", "fees", "--no-cors"),
        "--silent",  # its banner prints private keys
    ]
    if block_time is not None:
        command += ["--block-time", str(block_time.total_seconds())]
    if state is not None:
        command += ["--state", str(state), "--state-interval", "1", "--preserve-historical-states"]
    return command
