"""Tests of the generating task."""
