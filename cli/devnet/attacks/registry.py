"""All cheats by name: one for each row of docs/attacks.md."""

from __future__ import annotations

from cli.devnet.attacks import copies, deliveries, draws, edits, encodings, proofs, slots, weights
from cli.devnet.attacks.attack import Attack, End
from protocol.errors import NotFound
from protocol.verdicts import ReasonCode as Reason

_MODEL = frozenset({Reason.COMPUTATION_OTHER_MODEL, Reason.SAMPLING_REPLAY})
_REPLAY = frozenset({Reason.SAMPLING_REPLAY})
_PROOFS = frozenset({Reason.COMPUTATION_OTHER_MODEL})
_MALFORMED = frozenset({Reason.COMPUTATION_PROOF_MALFORMED})
_GROUPS = frozenset({Reason.SEED_GROUPS})
_PROMPTS = frozenset({Reason.SEED_PROMPTS})
_OTHER_WORK = frozenset({Reason.IDENTITY_OTHER_WORK})
_SIZE = frozenset({Reason.FORMAT_TOO_LARGE, Reason.FORMAT_UNREADABLE})

_BY_PREFILL = "checks 8 and 9: proofs and draws, against the version's own prefill"
_BY_REPLAY = "check 9: the seeded draws, replayed"
_BY_PROOFS = "check 8: TOPLOC proofs, against the version's own prefill"
_BY_SEEDS = "check 4: the slot's plan, drawn again"
_BY_IDENTITY = "check 3: the file against its lease"
_BY_FORMAT = "check 2: the file is read where memory and time are limited"
_BY_BOUNDS = "check 5: what the environment and the lease allow"
_BY_RECIPE = "the validator: what the version's recipe takes"
_BY_ENDS = "check 6: how answers end"

_WEIGHTS = (
    Attack(
        name="another-model",
        does="generates with another model of the same shape",
        gains="no version has to be fetched, ever",
        end=End.SLASHED,
        by=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("another", weights.another),
    ),
    Attack(
        name="smaller-model",
        does="generates with half of the layers, and has the right model make proofs of that",
        gains="a prefill costs a tenth of generating",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=weights.Smaller,
    ),
    Attack(
        name="int8",
        does="generates with weights in eight bits",
        gains="half the memory, and up to twice the tokens",
        end=End.SLASHED,
        by=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("int8", weights.quantised(8)),
    ),
    Attack(
        name="int4",
        does="generates with weights in four bits",
        gains="a quarter of the memory, and up to four times the tokens",
        end=End.SLASHED,
        by=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("int4", weights.quantised(4)),
    ),
    Attack(
        name="previous-checkpoint",
        does="goes on with the version before",
        gains="every second broadcast is saved",
        end=End.SLASHED,
        by=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.Earlier(1),
    ),
    Attack(
        name="second-previous-checkpoint",
        does="goes on with the version before the last",
        gains="two of three broadcasts are saved",
        end=End.SLASHED,
        by=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.Earlier(2),
    ),
)

_DRAWS = (
    Attack(
        name="other-prompt",
        does="answers an easier prompt under the planned prompt's number",
        gains="short prompts are cheaper, easy ones are better rewarded",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=lambda: draws.OtherPrompt(says_so=False),
    ),
    Attack(
        name="chosen-index",
        does="answers a prompt of its choice",
        gains="it has the answer already",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=lambda: draws.OtherPrompt(says_so=True),
    ),
    Attack(
        name="best-of-n",
        does="draws every answer four times and keeps the best",
        gains="better rewards, where a pool pays for them",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.BestOf,
    ),
    Attack(
        name="own-temperature",
        does="draws at 0.8 of the temperature, and reports what the right one would give",
        gains="better rewards",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.OtherParameters,
    ),
    Attack(
        name="greedy",
        does="takes the likeliest token each time",
        gains="speculative decoding becomes much faster",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: draws.OtherParameters(temperature=1.0, top_k=1),
    ),
    Attack(
        name="early-eos",
        does="writes an end token halfway through each answer",
        gains="half of the work for each sample",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.EarlyEnd,
    ),
    Attack(
        name="near-ties",
        does="takes, of tokens that are nearly as likely, the one that is rewarded best",
        gains="better rewards; in bfloat16 each such token alone is within the limits",
        end=End.SLASHED,
        by=f"{_BY_REPLAY}; in bfloat16, a budget over all files of the node (903)",
        reasons=_REPLAY,
        trick=draws.NearTies,
    ),
)

_EDITS = (
    Attack(
        name="padded",
        does="appends tokens behind the end of each answer",
        gains="tokens are what is paid",
        end=End.SLASHED,
        by=_BY_ENDS,
        reasons=frozenset({Reason.TERMINATION_LATE}),
        trick=lambda: edits.Rewritten(edits.padded, proven=True),
    ),
    Attack(
        name="truncated",
        does="cuts answers at a limit of its own",
        gains="long answers are the dear ones",
        end=End.SLASHED,
        by=_BY_ENDS,
        reasons=frozenset({Reason.TERMINATION_EARLY}),
        trick=lambda: edits.Rewritten(edits.truncated, proven=True),
    ),
    Attack(
        name="edited-text",
        does="writes the right answers by hand, with honest proofs of them",
        gains="every answer is rewarded, and none is generated",
        end=End.SLASHED,
        by=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.edited, proven=True),
    ),
    Attack(
        name="reward-tampered",
        does="says that every task is solved",
        gains="better rewards",
        end=End.SLASHED,
        by="check 7: every row scored again",
        reasons=frozenset({Reason.REWARD_DIFFERS}),
        trick=lambda: edits.Rewritten(edits.rewarded),
    ),
    Attack(
        name="length-penalty-tampered",
        does="takes no length penalty, or a bonus where there is none",
        gains="better rewards",
        end=End.SLASHED,
        by="checks 5 and 7: bounds, and every row scored again",
        reasons=frozenset({Reason.REWARD_DIFFERS, Reason.BOUNDS_REWARD}),
        trick=lambda: edits.Rewritten(edits.unpenalised),
    ),
    Attack(
        name="logprobs-tampered",
        does="reports good answers as less likely than they were",
        gains="steers what the trainer learns",
        end=End.SLASHED,
        by="check 10: log-probabilities, against the version's own",
        reasons=frozenset({Reason.LOG_PROBABILITIES_DIFFER}),
        trick=lambda: edits.Rewritten(edits.unlikelier),
    ),
    Attack(
        name="incomplete-group",
        does="leaves the worst answer of each group out",
        gains="better rewards on average",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_GROUPS,
        trick=lambda: edits.Rearranged(edits.without_the_worst),
    ),
    Attack(
        name="rows-reordered",
        does="hands rows in in another order",
        gains="answers are judged by others' prompts where a reader counts rows",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_GROUPS,
        trick=lambda: edits.Rearranged(edits.best_first),
    ),
    Attack(
        name="wrong-run",
        does="hands in work of another run",
        gains="one run's work is paid by two pools",
        end=End.SLASHED,
        by=_BY_IDENTITY,
        reasons=_OTHER_WORK,
        trick=edits.WrongRun,
    ),
    Attack(
        name="other-arithmetic",
        does="names a type that the recipe does not take",
        gains="wider limits, which coarser weights and older versions pass; or work that nobody has limits for",
        end=End.UNPAID,
        by=_BY_RECIPE,
        reasons=frozenset({Reason.BOUNDS_ARITHMETIC}),
        trick=lambda: edits.Relabelled(edits.other_arithmetic),
    ),
    Attack(
        name="build-of-its-own",
        does="names a build of the environment that nobody else has",
        gains="its work can't be scored again, and fills the list of what waits for a person",
        end=End.UNPAID,
        by=_BY_RECIPE,
        reasons=frozenset({Reason.BOUNDS_ENVIRONMENT}),
        trick=lambda: edits.Relabelled(edits.own_build),
    ),
    Attack(
        name="inflated-units",
        does="claims half as many tokens again as are in the file",
        gains="tokens are what is paid",
        end=End.SLASHED,
        by=f"{_BY_BOUNDS}; beyond the lease, bridge and ledger refuse the submission",
        reasons=frozenset({Reason.BOUNDS_UNITS}),
        trick=edits.Inflated,
    ),
    Attack(
        name="one-unit",
        does="changes one row of its file, and claims one token",
        gains="the penalty is for one token, if it is for what is claimed; the trainer learns the whole file",
        end=End.SLASHED,
        by=f"{_BY_BOUNDS}; the penalty is for all units of the lease",
        reasons=frozenset({Reason.BOUNDS_UNITS}),
        trick=lambda: edits.OneRow(edits.edited, claimed=1),
    ),
    Attack(
        name="endless-answers",
        does="writes programs that never end",
        gains="keeps validators from the work of others, for as long as they run them",
        end=End.SLASHED,
        by=f"{_BY_REPLAY}, before anything is run; a file's scoring has a time limit",
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.endless, proven=True),
        harms="one examination; scoring is not begun",
    ),
    Attack(
        name="boxed-garbage",
        does="writes two values into the box, one of them right",
        gains="a reader that looks for the right value finds it",
        end=End.SLASHED,
        by=f"{_BY_REPLAY}; the environment takes one value in the box, or calls it wrong",
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.boxed, proven=True),
    ),
    Attack(
        name="two-pools",
        does="hands in what it did for another pool of the same run",
        gains="one file is paid by two pools",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=edits.OtherPool,
    ),
    Attack(
        name="junk",
        does="makes answers up, under a build of the environment that nobody has",
        gains="such a file was rejected before its proofs were looked at, at no cost",
        end=End.SLASHED,
        by=f"{_BY_PREFILL}; a rejection without a slash is for work that was computed",
        reasons=_MODEL,
        trick=lambda: edits.Relabelled(edits.own_build, of=edits.Rewritten(edits.made_up)),
    ),
    Attack(
        name="junk-arithmetic",
        does="makes answers up, in a type that the recipe does not take",
        gains="such a file was rejected before its proofs were looked at, at no cost",
        end=End.SLASHED,
        by=f"{_BY_PREFILL}; a rejection without a slash is for work that was computed",
        reasons=_MODEL,
        trick=lambda: edits.Relabelled(edits.other_arithmetic, of=edits.Rewritten(edits.made_up)),
    ),
)

_PROOF_CHEATS = (
    Attack(
        name="proofs-of-another-row",
        does="gives each row its neighbour's proofs",
        gains="text can be changed without computing it",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_PROOFS,
        trick=proofs.Shifted,
    ),
    Attack(
        name="proofs-of-another-file",
        does="takes the proofs of another slot's file",
        gains="text can be had from anywhere",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Borrowed(proofs.other_slot),
    ),
    Attack(
        name="proofs-of-another-node",
        does="takes the proofs of another node's file",
        gains="one node computes for many",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Borrowed(proofs.other_node),
    ),
    Attack(
        name="constant-proof",
        does="writes a polynomial that has the same value everywhere",
        gains="no state has to be computed; the paper's limits let it pass on Gaussian states",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Forged(proofs.constant),
    ),
    Attack(
        name="chosen-modulus",
        does="chooses the modulus of its proofs so that one fits many",
        gains="one proof is computed and used for ever",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.chosen_modulus),
    ),
    Attack(
        name="missing-proofs",
        does="leaves proofs out",
        gains="nothing has to be computed, where what is missing passes",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.left_out),
    ),
    Attack(
        name="surplus-proofs",
        does="hands in twice as many proofs as there are intervals",
        gains="the one that fits may be among them; some verifiers crash",
        end=End.SLASHED,
        by=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.twice),
    ),
)

_ENCODINGS = (
    Attack(
        name="null-proofs",
        does="has nulls where proofs belong",
        gains="a reader that takes null for a fault of its own lets it pass",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=frozenset({Reason.FORMAT_SCHEMA}),
        trick=lambda: encodings.Encoded(encodings.null_proofs),
    ),
    Attack(
        name="not-finite",
        does="writes a number that is none",
        gains="comparisons with it are false, and it spoils the trainer's sums",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=frozenset({Reason.FORMAT_NOT_FINITE}),
        trick=encodings.NotFinite,
    ),
    Attack(
        name="extra-columns",
        does="adds a column",
        gains="reaches whoever reads everything",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=frozenset({Reason.FORMAT_SCHEMA}),
        trick=lambda: encodings.Encoded(encodings.extra_column),
    ),
    Attack(
        name="wrong-types",
        does="writes rewards as text",
        gains="breaks readers",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=frozenset({Reason.FORMAT_SCHEMA}),
        trick=lambda: encodings.Encoded(encodings.wrong_types),
    ),
    Attack(
        name="ten-million-rows",
        does="hands in ten million rows of nothing",
        gains="keeps validators from the work of others",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=_SIZE,
        trick=encodings.ManyRows,
    ),
    Attack(
        name="bomb",
        does="hands in a kilobyte that becomes a gigabyte",
        gains="a validator that dies judges nobody",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=_SIZE,
        trick=encodings.Bomb,
    ),
    Attack(
        name="not-parquet",
        does="hands in noise",
        gains="nothing has to be computed",
        end=End.SLASHED,
        by=_BY_FORMAT,
        reasons=frozenset({Reason.FORMAT_UNREADABLE}),
        trick=encodings.NotParquet,
    ),
)

_COPIES = (
    Attack(
        name="replayed",
        does="hands one file in for every slot",
        gains="one slot is done, all are paid",
        end=End.SLASHED,
        by=_BY_IDENTITY,
        reasons=_OTHER_WORK,
        trick=copies.Replayed,
    ),
    Attack(
        name="replayed-reencoded",
        does="hands one slot's samples in for every slot, under each slot's name and another hash",
        gains="one slot is done, all are paid",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=copies.Reencoded,
    ),
    Attack(
        name="two-nodes-same-rollouts",
        does="hands in what another node of its owner did",
        gains="one machine is paid as two",
        end=End.SLASHED,
        by=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=copies.SameAsAnother,
    ),
)

_DOORS = (
    Attack(
        name="skipped-index",
        does="leases slots, looks at them, and hands in the better half",
        gains="better rewards on average",
        end=End.REFUSED,
        by="the orchestrator: a node that delivers too small a share of its leases rests",
        trick=slots.PickySlots,
        costs="its delivered share, and then a rest",
    ),
    Attack(
        name="stale-step",
        does="asks for slots of a step that is over",
        gains="its old files could be handed in",
        end=End.REFUSED,
        by="the orchestrator: a step outside the run's window has no slots",
        trick=lambda: slots.OtherStep(slots.STALE),
    ),
    Attack(
        name="future-step",
        does="asks for slots of a step that has not come",
        gains="it could work ahead with a version that is there already",
        end=End.REFUSED,
        by="the orchestrator: a step outside the run's window has no slots",
        trick=lambda: slots.OtherStep(slots.FUTURE),
    ),
    Attack(
        name="swapped-upload",
        does="signs one file and uploads another",
        gains="it could decide afterwards which file it was",
        end=End.REFUSED,
        by="the object store: a key holds the bytes whose SHA-256 it names, or nothing",
        delivery=deliveries.SwappedUpload,
    ),
    Attack(
        name="no-upload",
        does="submits files that it never uploads",
        gains="it is paid where a file that can't be judged is",
        end=End.EXPIRES,
        by="the orchestrator carries no work without its file; carried by the node itself, it expires",
        delivery=deliveries.NoUpload,
    ),
    Attack(
        name="ghost",
        does="submits hashes on the ledger itself, and uploads nothing",
        gains="each occupies a place of its step, so that the run stands still",
        end=End.EXPIRES,
        by="the orchestrator: work counts as pending only while the store has its file, and absent files count against "
        "its node",
        delivery=deliveries.Ghost,
        costs="gas, the penalties that its open work locks until it expires, and its leases",
        harms="a few seconds per slot, until the orchestrator has asked the store",
    ),
    Attack(
        name="late-upload",
        does="changes one row, submits on the ledger itself, and uploads when it can know which rows are drawn",
        gains="a file is handed in only if no changed row is drawn",
        end=End.SLASHED,
        by="the validator: a file that was absent at the first look is computed again in full",
        reasons=_REPLAY,
        trick=lambda: edits.OneRow(edits.edited),
        delivery=deliveries.LateUpload,
        harms="one examination of all rows",
    ),
    Attack(
        name="unleased-upload",
        does="uploads files of slots that it does not hold",
        gains="fills the pool's store",
        end=End.REFUSED,
        by="the orchestrator: room in the store is for live leases, and for no more than a file of theirs can need",
        delivery=deliveries.UnleasedUpload,
    ),
    Attack(
        name="slot-shopper",
        does="foretells its next slots, and leases those that please",
        gains="longer answers, easier prompts, or groups that teach nothing",
        end=End.IN_VAIN,
        by="the lease's salt: until a slot is leased, nobody but the orchestrator can know its seed",
        trick=slots.SlotShopper,
    ),
    Attack(
        name="slow",
        does="does its slots, and hands them in when their leases are nearly over",
        gains="nothing itself; the run waits for it at every step",
        end=End.IN_VAIN,
        by="the orchestrator: leases follow the pool's median, late slots are leased again, and one provider gets no "
        "more than a third of a step while others ask",
        trick=slots.Slow,
        costs="its delivered share: work past half of its lease counts as not delivered, and the node rests",
        harms="time, up to half of a lease for each of its slots",
    ),
    Attack(
        name="banned-in-between",
        does="goes on working after it was banned, and submits that",
        gains="a ban comes too late for what it goes on with",
        end=End.REFUSED,
        by="the orchestrator leases it nothing more; leases from before the ban hold until they expire, within the "
        "pool's notice period, and no longer",
    ),
)

CHEATS: dict[str, Attack] = {
    cheat.name: cheat for cheat in (*_WEIGHTS, *_DRAWS, *_EDITS, *_PROOF_CHEATS, *_ENCODINGS, *_COPIES, *_DOORS)
}


def find_cheat(name: str) -> Attack:
    """The cheat of this name.

    Raises:
        NotFound: There is none.
    """
    if name not in CHEATS:
        raise NotFound(f"there is no cheat {name[:40]!r}", hint=f"there are: {', '.join(CHEATS)}")
    return CHEATS[name]
