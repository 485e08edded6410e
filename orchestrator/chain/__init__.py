"""The orchestrator's view of the ledger: interfaces and their implementation."""
