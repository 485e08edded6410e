"""Everything the orchestrator keeps in Redis: nodes, tasks, assignments, logs, events. Lua where two writes are one."""
