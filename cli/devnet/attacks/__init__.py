"""Nodes that cheat, for a devnet and for tests: each runs the real worker and task with one change.

attack      base of all attacks, with the hooks that an attack may override
toolkit     the real generator, with hooks that change its parts
weights     attacks that generate with other weights than the version's
draws       attacks that use other prompts or samples than the slot's seed gives
edits       attacks that change a finished file
proofs      attacks that submit proofs of other work
copies      attacks that submit work again, or submit the work of another node
encodings   attacks that submit files which are not valid rollout files
slots       attacks that request slots of other steps, or give up, predict or delay their slots
deliveries  attacks that upload or submit something else than the task's output
registry    all attacks by name
task        `python -m cli.devnet.attacks.task NAME …` in place of `python -m rollouts …`
worker      a worker that runs this task; `python -m cli.devnet.attacks run --cheat NAME --config FILE`

Honest nodes do not import this package. The wheel of `muster-network` omits it; the wheel of
`muster-network-attacks` (`deploy/attacks`) contains it.
"""
