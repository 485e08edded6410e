"""`muster shardcast`: publish, relay and fetch checkpoints."""
