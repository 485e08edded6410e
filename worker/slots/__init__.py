"""Slots leased for the running task, and the bridge to its container."""
