"""Transactions that nodes ask the orchestrator to relay to the ledger: checks, and the kinds that the loop sends."""
