"""Ledger events: typed values, decoding, and reorg-safe cursors."""
