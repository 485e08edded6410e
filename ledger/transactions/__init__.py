"""Transactions: nonces, signing, fees, sending and receipts."""
