"""Sampling of tokens with seeded noise, and replay of recorded tokens.

    parameters        sampling settings of a lease: temperature, top-k, top-p, maximum length
    philox            Philox4x32-10: 32-bit words from a key and a counter, the same on every machine
    philox_rows       the same words for rows of consecutive counters, faster
    noise             from (seed, sample, position) to one Gumbel value per token of the vocabulary
    noise_triton      the same noise on NVIDIA GPUs by one kernel
    mask              tokens that top-k and top-p keep, with margins
    sampler           temperature, top-k, top-p, noise, argmax; and the recorded log-probability
    softmax           sums of a row's softmax in one pass over memory
    likelihood        test of recorded tokens' likelihood without the noise
    candidate_tokens  the few tokens that can score better than a recorded token, found without a logarithm
    seeded_draw       draws from logits and seed, with the noise of candidates only
    replay            deviation of a recorded token from the token that the noise selects

This file imports no module, so that code that only needs the parameters does not load torch.
"""
