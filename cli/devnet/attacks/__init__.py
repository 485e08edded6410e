"""Nodes that cheat, for a devnet and for tests: each is the real worker and the real task, changed in one place.

attack      base of all attacks, with the hooks that an attack may override
toolkit     the real generator, with hooks that change its parts
weights     weights other than the version's
draws       prompts and samples other than those that the seed gives
edits       changes of a finished file
proofs      proofs that do not belong to the work
copies      work that was submitted before, or by another node
encodings   files that are no valid rollout file
slots       slots of other steps, or slots that the node gives up
deliveries  uploads and submissions that differ from the task's output
registry    all attacks by name
task        `python -m cli.devnet.attacks.task NAME …` in place of `python -m rollouts …`
worker      a worker that runs such a task; `python -m cli.devnet.attacks run --cheat NAME --config FILE`

Honest nodes do not import this package. The wheel of `muster-network` omits it; the wheel of
`muster-network-attacks` (`deploy/attacks`) contains it.
"""
