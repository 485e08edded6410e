"""Rollout files: schema, packed format, sandboxed decoding and verification."""
