"""`muster pool`: commands for pool owners."""
