"""A development chain in one Python process: py-evm, blocks in SQLite, JSON-RPC over HTTP.

Start it with `python -m ledger.devchain.embedded`. It is for tests and for networks on one machine, and needs only pip
packages. It is not an Ethereum node: it does not verify the blocks in its file, has no peers and no consensus, and
mines on request.
"""
