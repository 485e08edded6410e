"""Limits of statistical checks, calibrated on honest work."""
