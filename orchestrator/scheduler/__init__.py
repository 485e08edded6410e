"""Task scheduling: pure functions that decide on which nodes a task runs."""
