"""Limits on what one client can occupy of an HTTP server: connections, memory of heads and bodies, and time."""
