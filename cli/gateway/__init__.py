"""`muster gateway`: runs the gateway, and manages its tokens."""
