"""Bounds on the resources of an HTTP server that strangers can occupy: connections, heads, bodies, time."""
