"""A development chain in one Python process: the EVM of py-evm, blocks in SQLite, JSON-RPC over HTTP.

Started with `python -m ledger.devchain.embedded`. It serves tests, and networks on one machine that need no tool
outside pip. It is not an Ethereum node: it trusts its own file, has no peers and no consensus, and mines on request.
"""
