"""Typed client of the ledger contracts; callers never handle ABI tuples.

async with Ledger.connect("http://127.0.0.1:8545", deployment, key=key) as ledger:
    await ledger.stake.add(10 * UNIT)

The clients cover the contract functions that Muster needs and a few more, but no permits, burning of tokens or
transfers of a contract's ownership. Muster itself does not call `stake.add_for`,
`registry.register_for`, `pools.is_publisher`, `pools.invite_used` and `pools.set_data_uri`; they serve other programs
and the tests of the contracts.
"""

from ledger.client.ledger import Ledger

__all__ = ["Ledger"]
