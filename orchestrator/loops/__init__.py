"""Background loops. A loop runs under a leader lease if two instances of it would conflict."""
