"""Task scheduling: pure functions that plan which node runs which task."""
