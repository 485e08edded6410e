"""The work queue in Redis: leases, retry policy, error classes, and changes by ledger events."""
