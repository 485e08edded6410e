"""Manifests: signed descriptions of a version's files and blocks.

The publisher extends a manifest while the version is written.
"""
