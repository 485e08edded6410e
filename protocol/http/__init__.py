"""HTTP client, server and middleware that all services share."""
