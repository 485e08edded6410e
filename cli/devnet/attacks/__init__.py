"""Nodes that cheat, for a devnet and for tests: each is the real worker and the real task, changed in one place.

cheat       what a cheat is, and where one can begin
bench       the real generator with its tools laid out
weights     other weights than the version's
draws       other prompts and other draws than the seed's
edits       a finished file, changed by hand
proofs      proofs that are not of this work
copies      work that was handed in before, or by somebody else
encodings   bytes that are no such file
slots       slots that are not this node's to do, or that it lets go
deliveries  a machine that sends, or leaves out, something else than its task made
registry    all of them by name
task        `python -m cli.devnet.attacks.task NAME …` in place of `python -m rollouts …`
worker      a worker whose rollout task cheats; `python -m cli.devnet.attacks run --cheat NAME --config FILE`

Nothing in here is part of an honest node's program.
"""
