"""Checks of transactions that nodes ask the orchestrator to relay to the ledger."""
