"""Redis: connection, key names, errors, typed Lua scripts, leader leases."""
