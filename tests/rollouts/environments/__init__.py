"""Tests of `rollouts/environments/`."""
