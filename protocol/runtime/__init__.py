"""Process infrastructure: clock, retries, background loops, logs, settings and budgets."""
