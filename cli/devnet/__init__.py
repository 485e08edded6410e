"""A whole network on one machine: its supervisor, services, live view and report."""
