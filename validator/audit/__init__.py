"""Audits: which rows are recomputed, with which secret, and second looks. Only `epochs` reads the ledger."""
