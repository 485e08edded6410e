"""Trainable models: opened, created from scratch, or converted from GGUF files."""
