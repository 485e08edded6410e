"""Node records in Redis."""
