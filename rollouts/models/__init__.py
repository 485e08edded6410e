"""Policy models: properties read from a version's folder, tokenizer, weights and forward pass."""
