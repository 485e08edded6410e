"""Value types of the validator: submitted work and queue items."""
