"""Durable files: atomic writes, tensors, and the saved state of unfinished work."""
