"""The trainer: warm-up, reinforcement learning, evaluation and publishing of versions."""
