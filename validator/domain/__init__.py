"""Values that all of the validator shares: submitted work and queue items."""
