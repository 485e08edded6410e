"""The validator's background loops, one per module, and their helper modules."""
