"""`muster env`: environments, their prompts and the difficulty filter."""
