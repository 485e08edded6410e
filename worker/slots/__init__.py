"""Slots that are leased for the running task, and the bridge to the task's container."""
