"""The validator's view of the ledger: connection, facts of submissions and reorg tracking."""
