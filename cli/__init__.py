"""The `muster` command and the devnet supervisor."""

COMPLETION_VARIABLE = "_MUSTER_COMPLETE"
"""Environment variable in which a shell that requests completions names itself, for example `complete_bash`."""
