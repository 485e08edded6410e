"""Typed client of the ledger contracts; callers never handle ABI tuples.

async with Ledger.connect("http://127.0.0.1:8545", deployment, key=key) as ledger:
    await ledger.stake.add(10 * UNIT)
"""

from ledger.client.ledger import Ledger

__all__ = ["Ledger"]
