"""Runs `muster` as `python -m cli`."""

from muster_network import main

main()
