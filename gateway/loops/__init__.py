"""Background loops of the gateway."""
