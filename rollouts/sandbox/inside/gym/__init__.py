"""Prompts and scores of reasoning-gym's datasets, inside a sandbox."""
