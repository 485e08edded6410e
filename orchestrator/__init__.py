"""The orchestrator: keeps a pool's nodes alive, gives them tasks, and tells the pool's owner everything it knows."""
