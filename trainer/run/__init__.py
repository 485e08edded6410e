"""The training run: turns accepted rollouts into policy versions, and resumes after any failure."""
