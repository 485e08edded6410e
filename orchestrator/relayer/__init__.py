"""Use cases of the relayer: checks and queues requests, and defines how each is sent."""
