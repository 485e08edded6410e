"""Download of versions: choice of peers, schedule of requests, transfer, and verification."""
