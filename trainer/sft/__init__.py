"""Supervised warm-up: a model learns to answer as demonstrations do, so that reinforcement has something to select."""
