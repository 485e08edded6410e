"""Infrastructure of a process: clock, retries, loops, logs, settings, files and budgets."""
