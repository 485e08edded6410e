"""Access to the ledger: roles on request, events, and facts that are cached in Redis."""
