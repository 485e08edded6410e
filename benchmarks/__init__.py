"""One script for each figure that the README claims; every one prints a table."""
