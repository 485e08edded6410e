"""Inference engines: one interface with two implementations.

interface         the `Engine` protocol, its requests and completions
request_encoding  makes an engine's requests of a client's body
errors            errors of engines
base              common part of the engines
opening           opens an engine by name
torch             transformers with our own key-value cache; any machine
vllm              vLLM, on a GPU or a CPU
"""
