"""The worker: a daemon on a contributor's machine that joins a pool and runs the tasks assigned to it."""
