"""A development chain in one Python process: the EVM of py-evm, blocks in SQLite, JSON-RPC over HTTP.

Started with `python -m ledger.chain.embedded`. What it is for: a network on one machine without any tool outside pip,
and tests. What it is not: a node. It trusts its own file, has no peers and no consensus, and mines when it is told to.
"""
