"""The ledger as discovery reads it: roles, events and cached facts."""
