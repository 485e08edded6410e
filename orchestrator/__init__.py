"""Orchestrator of a pool: tracks nodes, assigns tasks, leases slots, relays transactions."""
