"""Histories of the economy that Hypothesis invents, against a model in plain Python."""
