"""Tests of `rollouts/sandbox/`."""
