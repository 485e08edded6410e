"""What Redis holds: the queue, positions, leases, deadlines. All of it can be read from the ledger again."""
