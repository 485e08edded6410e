"""Which rows are computed again, how many, with which secret, and who looks again. Only `epochs` asks the ledger."""
