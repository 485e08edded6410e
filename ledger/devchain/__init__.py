"""Development chains behind one interface: the embedded chain, and anvil.

The embedded chain needs only pip packages.

    async with start_chain("embedded", state=directory / "chain.sqlite") as chain:
        web3 = await connect(chain.url, expected_chain_id=chain.chain_id)

Both serve JSON-RPC over HTTP on loopback, fund the same well-known development accounts, and keep their state across
restarts. Never use these chains with real money: the keys are public.
"""

from ledger.devchain.accounts import DEVELOPMENT_MNEMONIC, DevelopmentAccount, development_accounts
from ledger.devchain.process import ChainKind, ChainProcess, chain_command, chain_environment, free_port, start_chain

__all__ = [
    "DEVELOPMENT_MNEMONIC",
    "ChainKind",
    "ChainProcess",
    "DevelopmentAccount",
    "chain_command",
    "chain_environment",
    "development_accounts",
    "free_port",
    "start_chain",
]
