"""Decisions of the gateway without I/O."""
