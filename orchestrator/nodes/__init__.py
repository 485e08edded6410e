"""Nodes: heartbeats, state transitions, membership and eligibility."""
