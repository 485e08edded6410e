"""The validator's data in Redis: processes, deadlines, records, budgets, counts and Lua scripts.

Most of the data can be rebuilt from the ledger's events; near-tie budgets, fingerprints and counts can't.
"""
