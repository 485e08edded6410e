"""State of the gateway in Redis."""
