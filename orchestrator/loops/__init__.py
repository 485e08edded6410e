"""Background work. Each loop runs under a lease if two instances of it would conflict."""
