"""Supervised warm-up on demonstrations, before reinforcement learning."""
