"""JSON-RPC connection to a node, and decoding of revert data."""
