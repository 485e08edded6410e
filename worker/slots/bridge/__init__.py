"""The bridge: HTTP API on a unix socket, a task's only channel to its worker."""
