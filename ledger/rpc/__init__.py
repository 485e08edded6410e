"""JSON-RPC connection to a chain, and decoding of revert data."""
