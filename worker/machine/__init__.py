"""Hardware inventory of this machine."""
