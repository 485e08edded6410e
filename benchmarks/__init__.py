"""One script per published figure; each prints a table."""
