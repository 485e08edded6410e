"""Runs `muster` as `python -m muster_network`."""

from muster_network import main

main()
