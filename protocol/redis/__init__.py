"""Access to Redis: connection, key names, errors, typed Lua scripts and leader leases."""
