"""Download of a version: peers, schedule, transfer and verification."""
