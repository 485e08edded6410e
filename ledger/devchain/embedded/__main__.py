"""Runs the embedded development chain: `python -m ledger.devchain.embedded --port 8545 --state chain.sqlite`.

The funded accounts are derived from a mnemonic: from a file, else `MUSTER_CHAIN_MNEMONIC`, else the public development
mnemonic. Use your own mnemonic on a chain that others can reach.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import uvicorn

from ledger.devchain.accounts import DEVELOPMENT_BALANCE, DEVELOPMENT_MNEMONIC, development_accounts
from ledger.devchain.embedded.node import EmbeddedChain
from ledger.devchain.embedded.server import build_app
from ledger.devchain.embedded.store import ChainStore
from ledger.native_signing import require_native_signing
from protocol.errors import MusterError

MNEMONIC_VARIABLE = "MUSTER_CHAIN_MNEMONIC"


def main() -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    block_time = timedelta(seconds=options.block_time) if options.block_time > 0 else None
    try:
        require_native_signing()
        accounts = development_accounts(options.accounts, mnemonic=_mnemonic(options.mnemonic_file))
        store = ChainStore(options.state)
        node = EmbeddedChain(
            store,
            chain_id=options.chain_id,
            balances={bytes.fromhex(account.address[2:]): DEVELOPMENT_BALANCE for account in accounts},
            automine=block_time is None,
        )
    except MusterError as error:
        sys.stderr.write(f"error: {error.detail}\n  what to do: {error.hint}\n")
        return 2
    gather = timedelta(seconds=options.gather) if options.gather is not None else None
    app = build_app(node, block_time=block_time, gather=gather)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", access_log=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ledger.devchain.embedded", description="An EVM development chain.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    parser.add_argument("--port", type=int, default=8545)
    parser.add_argument("--state", type=Path, default=None, help="file that keeps the chain (default: memory)")
    parser.add_argument("--block-time", type=float, default=0, help="seconds between blocks; 0 mines on arrival")
    parser.add_argument(
        "--gather",
        type=float,
        default=None,
        help="seconds from a transaction's arrival to an early block; default: blocks only at the block time",
    )
    parser.add_argument("--chain-id", type=int, default=31337)
    parser.add_argument("--accounts", type=int, default=10, help="how many accounts to fund")
    parser.add_argument(
        "--mnemonic-file", type=Path, default=None, help=f"default: ${MNEMONIC_VARIABLE}, else the public test mnemonic"
    )
    return parser


def _mnemonic(path: Path | None) -> str:
    if path is not None:
        return path.read_text(encoding="utf-8").strip()
    return os.environ.get(MNEMONIC_VARIABLE, DEVELOPMENT_MNEMONIC).strip()


if __name__ == "__main__":
    sys.exit(main())
