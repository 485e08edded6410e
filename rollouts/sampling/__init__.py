"""How a token is drawn, and how anybody can draw it again.

    parameters   what a lease fixes: temperature, top-k, top-p, the longest answer
    philox       Philox4x32-10: 32-bit words from a key and a counter, the same on every machine
    philox_rows  the same words for rows of consecutive counters, faster
    noise        from (seed, sample, position) to one Gumbel value for each token of the vocabulary
    mask         what top-k and top-p leave in, and how firmly
    drawing      temperature, top-k, top-p, noise, argmax; and the log-probability that is recorded
    softmax      what the softmax of a row comes to, in one go
    likelihood   whether recorded tokens are as probable as draws are, without the noise
    rivals       which few tokens can have beaten a recorded one, found without a logarithm
    replay       how far a recorded token is from the one that the noise picks

Nothing is imported here, so that who only needs the parameters does not load torch.
"""
