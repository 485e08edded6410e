"""The bridge: the HTTP API on a unix socket that is a task's only channel to its worker."""
