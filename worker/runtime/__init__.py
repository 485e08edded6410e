"""Runtimes for tasks: the interface, and its implementations Docker and sandboxed process."""
