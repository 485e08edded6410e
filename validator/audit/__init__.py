"""Audits: selection of rows to recompute, the secrets that draw them, second looks, and checks of past draws."""
