"""The durable queue of task files to be uploaded to the object store and submitted to the ledger."""
