"""Engine on vLLM, for a GPU or a CPU, with the same seeded sampling and proofs as the torch engine.

rows          assignment of answers to the rows of vLLM's batch
sampler_hook  one batch: tokens from our noise, log-probabilities, states to the proof builder
processor     logits processor that vLLM calls with the states and logits of a step
running       wrapper of the vLLM instance that runs in this process
batch         runs requests to completions
prefill       states and logits of existing answers
prefill_steps layout of a prefill's steps in a numerics class of CPUs (pure functions)
step_model    runs such steps in vLLM's model
settings      vLLM's arguments and its memory for keys and values
engine        the `Engine` implementation

vLLM runs in the process that loads the first version. vLLM binds memory and threads of that process, so a trainer must
not share the process.
"""
