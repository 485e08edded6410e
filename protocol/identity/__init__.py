"""Keys, signatures and tokens."""
