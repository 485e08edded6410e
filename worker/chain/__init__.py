"""The ledger as the worker reads and writes it, and verification of leases against it."""
