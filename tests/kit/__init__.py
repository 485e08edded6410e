"""Shared helpers and fixtures of the test suite: real services, chains and models, and fakes of a few lines.

A test module imports helpers from here or from its own folder, never from another folder's tests.
"""
