"""Publication of versions: hashes files, and extends signed manifests."""
