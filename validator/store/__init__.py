"""Redis store of cursors, leases, deadlines and records. All of it can be rebuilt from the ledger."""
