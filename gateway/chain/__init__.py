"""The ledger, as the gateway reads it."""
