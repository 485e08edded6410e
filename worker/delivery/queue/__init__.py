"""The durable queue: files that tasks made, on their way to the object store and the ledger."""
