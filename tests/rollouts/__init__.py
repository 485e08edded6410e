"""Tests of `rollouts/`."""
