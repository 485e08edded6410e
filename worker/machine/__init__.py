"""Inventory of this machine's hardware, software and load."""
