"""Tasks: the reconciler that starts and stops containers to match assignments."""
