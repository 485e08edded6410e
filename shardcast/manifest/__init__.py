"""Manifests: signed, growing descriptions of a version's files and blocks."""
