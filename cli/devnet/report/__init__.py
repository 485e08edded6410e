"""What a devnet's run was, told at its end: the model, its judgement, and its two forms, text and one HTML page."""
