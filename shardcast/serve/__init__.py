"""HTTP server with which an origin or a relay sends versions to its readers."""
