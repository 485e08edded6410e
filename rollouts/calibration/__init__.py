"""Limits of the statistical checks, calibrated on honest rollout files."""
