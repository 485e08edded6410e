"""Engine on transformers models with our own key-value cache, for any machine that torch supports.

The engine is meant for small models, and for machines without vLLM. A finished answer's row goes to the next request
immediately, so finished answers take no compute.
"""
