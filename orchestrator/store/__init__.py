"""Data in Redis: nodes, tasks, assignments, logs, events and the run.

Related writes are made by Lua scripts, which Redis executes atomically.
"""
