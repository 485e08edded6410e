"""The `muster` command and the devnet supervisor."""
