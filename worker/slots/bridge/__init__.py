"""The bridge: how a task speaks to its worker, and the only way it does."""
