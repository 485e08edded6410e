"""The trainer: supervised warm-up, reinforcement learning and evaluation."""
