"""What turns prompts into answers: one interface, several engines behind it.

interface   what an engine is, what it is asked, what it gives
errors      what goes wrong in one
opening     an engine by its name
torch       transformers with a key-value cache of our own; any machine
vllm        vLLM, on a GPU or a CPU
"""
