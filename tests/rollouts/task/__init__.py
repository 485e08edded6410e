"""Tests of the task that generates."""
