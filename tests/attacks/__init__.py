"""One attacking node for each row of docs/attacks.md with its outcome, and honest nodes, which lose nothing."""
