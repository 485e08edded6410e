"""Background work. Each loop runs under a lease where two of it would get in each other's way."""
