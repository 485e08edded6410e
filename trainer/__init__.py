"""The trainer: supervised warm-up, evaluation, and the versions that come of it (design: section 12)."""
