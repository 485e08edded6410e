"""Redis store of nodes, tasks, assignments, logs and events. Lua scripts make related writes atomic."""
