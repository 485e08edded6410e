"""Background loops of the orchestrator.

Every process runs all loops. A loop that must not run in two processes at a time does its work under a leader lease.
"""
