"""One cheating node for each row of docs/attacks.md, and what becomes of it; and honest ones, who lose nothing."""
