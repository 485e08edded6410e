"""Joining a pool: registration, invites and relocation of the orchestrator."""
