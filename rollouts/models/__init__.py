"""Policy models: folder facts, tokenizer, weights and forward pass."""
