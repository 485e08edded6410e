"""A whole network on one machine: the supervisor, what it runs, and what it shows."""
