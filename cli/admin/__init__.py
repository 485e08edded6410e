"""`muster admin`: backs up, restores and checks a pool's state."""
