"""The validator's background work, one loop per file."""
