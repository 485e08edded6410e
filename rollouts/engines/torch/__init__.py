"""Generation with transformers models and a key-value cache of our own, on any machine that torch runs on.

Small models, and machines without vLLM. A row of the batch is taken by the next request as soon as its answer ends, so
finished answers cost nothing.
"""
