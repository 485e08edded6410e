"""Sending transactions: nonces, fees, signing and receipts."""
