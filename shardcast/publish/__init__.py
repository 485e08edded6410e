"""Publication of versions by an origin."""
