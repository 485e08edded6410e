"""Serving of versions by an origin or a relay."""
