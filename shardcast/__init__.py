"""SHARDCAST: checkpoints in at an origin, out at clients, over relays that nobody has to trust."""
