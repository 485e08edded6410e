"""`muster worker`: commands for contributors."""
