"""A run's decisions, without clock and network: which step, which slot, and what became of it."""
