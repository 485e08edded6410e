"""Access to the ledger: interfaces to pool and run, and implementations over JSON-RPC."""
