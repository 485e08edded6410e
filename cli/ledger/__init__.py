"""`muster ledger`, `node`, `stake` and `work`: commands that read and write the ledger."""
