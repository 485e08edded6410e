"""State of a run on disk: the journal, the saved state and the history of settings."""
