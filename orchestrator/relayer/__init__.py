"""Checks, queue and strategies of the transactions that the relayer sends for nodes."""
