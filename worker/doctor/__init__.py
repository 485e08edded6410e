"""`muster worker doctor`: checks everything that a node needs to join a pool."""
