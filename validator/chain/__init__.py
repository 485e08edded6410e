"""The validator's access to the ledger: connection, facts of submissions, role history and reorg tracking."""
