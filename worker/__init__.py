"""The worker: daemon on a contributor's machine that joins a pool and runs its tasks."""
