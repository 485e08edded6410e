"""Membership of a pool: registration, invites, and a changed URL of the orchestrator."""
