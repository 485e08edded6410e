"""Generation with vLLM, on a GPU or a CPU, seeded and proved as with any other engine.

rows        which answer stands in which row of vLLM's batch
drawing     one batch: tokens from our noise, log-probabilities, states to the proof builder
processor   where vLLM calls us: a logits processor that sees states and logits of a step together
running     one vLLM in this process, behind the few calls that are needed
settings    what vLLM is told when it starts, and how much memory it takes for keys and values
engine      the `Engine` that all of this is

vLLM runs in the process that loads the first version: it binds memory and threads there, so a trainer never shares it.
"""
