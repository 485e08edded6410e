"""Task runtimes: the interface and its two implementations, Docker and a sandboxed process."""
