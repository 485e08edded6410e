"""The orchestrator: tracks a pool's nodes, assigns tasks to them, and serves the pool owner's API."""
