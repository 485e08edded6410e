"""The worker's access to the ledger, and verification of leases against the chain."""
