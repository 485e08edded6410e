"""Value types of the validator without I/O: submissions and queue items."""
