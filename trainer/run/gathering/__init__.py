"""Accepted rollouts: fetched, verified and selected for the batch of a step."""
