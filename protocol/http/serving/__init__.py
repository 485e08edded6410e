"""Bounds on what strangers can make an HTTP server hold: connections, heads, bodies, time."""
