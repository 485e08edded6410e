"""Task scheduling: a pure plan of which node runs which task."""
