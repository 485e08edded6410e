"""The worker: a daemon that joins a pool and runs what it is given, on a machine that belongs to somebody else."""
