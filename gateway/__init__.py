"""Service that offers a pool's workers to OpenAI clients at one address."""
