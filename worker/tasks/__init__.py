"""Tasks: the reconciler, which starts and stops containers to match assignments."""
