"""Table of all attacks; each is one row of docs/attacks.md."""

from __future__ import annotations

from cli.devnet.attacks import copies, deliveries, dialogues, draws, edits, encodings, proofs, slots, weights
from cli.devnet.attacks.attack import Attack, End
from protocol.errors import NotFound
from protocol.verdicts import ReasonCode as Reason

_MODEL = {Reason.COMPUTATION_OTHER_MODEL, Reason.SAMPLING_REPLAY}
_REPLAY = {Reason.SAMPLING_REPLAY}
_PROOFS = {Reason.COMPUTATION_OTHER_MODEL}
_MALFORMED = {Reason.COMPUTATION_PROOF_MALFORMED}
_GROUPS = {Reason.SEED_GROUPS}
_PROMPTS = {Reason.SEED_PROMPTS}
_OTHER_WORK = {Reason.IDENTITY_OTHER_WORK}
_SIZE = {Reason.FORMAT_TOO_LARGE, Reason.FORMAT_UNREADABLE}

_BY_PREFILL = "checks 8 and 9: the validator compares proofs and seeded draws with its own prefill"
_BY_REPLAY = "check 9: the seeded draws, replayed by the validator"
_BY_PROOFS = "check 8: TOPLOC proofs, compared with the validator's own prefill"
_BY_SEEDS = "check 4: prompts and groups, drawn again from the slot's seed"
_BY_IDENTITY = "check 3: the file's header, compared with its lease"
_BY_FORMAT = "check 2: the decoder, in a sandbox with limited memory and time"
_BY_BOUNDS = "check 5: bounds of the environment and the lease"
_BY_RECIPE = "the validator: types and builds that the version's recipe allows"
_BY_ENDS = "check 6: the end of each answer"

_WEIGHTS = (
    Attack(
        name="another-model",
        action="generates with another model of the same shape",
        motive="it never downloads a version",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("another", weights.another),
    ),
    Attack(
        name="smaller-model",
        action="generates with half of the layers, and proves the tokens with a prefill of the right model",
        motive="a prefill costs a tenth of generating",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=weights.Smaller,
    ),
    Attack(
        name="int8",
        action="generates with weights quantised to 8 bits",
        motive="half the memory, and up to twice the tokens",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("int8", weights.quantised(8)),
    ),
    Attack(
        name="int4",
        action="generates with weights quantised to 4 bits",
        motive="a quarter of the memory, and up to four times the tokens",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.OtherWeights("int4", weights.quantised(4)),
    ),
    Attack(
        name="previous-checkpoint",
        action="generates with the previous version",
        motive="it downloads every second version only",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.Earlier(1),
    ),
    Attack(
        name="second-previous-checkpoint",
        action="generates with the version before the previous one",
        motive="it downloads every third version only",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: weights.Earlier(2),
    ),
)

_DRAWS = (
    Attack(
        name="other-prompt",
        action="answers an easier prompt under the number of the planned one",
        motive="short prompts are cheaper, and easy ones earn more reward",
        defence=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=lambda: draws.OtherPrompt(says_so=False),
    ),
    Attack(
        name="chosen-index",
        action="answers a prompt of its choice",
        motive="it knows the answer already",
        defence=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=lambda: draws.OtherPrompt(says_so=True),
    ),
    Attack(
        name="best-of-n",
        action="samples every answer four times and keeps the best one",
        motive="higher rewards, in a pool that pays for them",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.BestOf,
    ),
    Attack(
        name="own-temperature",
        action="samples at 0.8 of the temperature, and reports the log-probabilities of the right one",
        motive="higher rewards",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.OtherParameters,
    ),
    Attack(
        name="greedy",
        action="always takes the most likely token",
        motive="speculative decoding becomes much faster",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: draws.OtherParameters(temperature=1.0, top_k=1),
    ),
    Attack(
        name="early-eos",
        action="writes an end token halfway through each answer",
        motive="half of the work per sample",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=draws.EarlyEnd,
    ),
    Attack(
        name="near-ties",
        action="picks the best-rewarded one of tokens that are almost equally likely",
        motive="higher rewards; in bfloat16 each such token is within the limits",
        defence=f"{_BY_REPLAY}; in bfloat16, a limit on near-ties over the newest files of the node (reason 903)",
        reasons=_REPLAY,
        trick=draws.NearTies,
    ),
)

_EDITS = (
    Attack(
        name="padded",
        action="appends tokens after the end token of each answer",
        motive="payment is per token",
        defence=_BY_ENDS,
        reasons={Reason.TERMINATION_LATE},
        trick=lambda: edits.Rewritten(edits.padded, proven=True),
    ),
    Attack(
        name="truncated",
        action="cuts answers at a limit of its own",
        motive="long answers cost most",
        defence=_BY_ENDS,
        reasons={Reason.TERMINATION_EARLY},
        trick=lambda: edits.Rewritten(edits.truncated, proven=True),
    ),
    Attack(
        name="edited-text",
        action="writes the right answers by hand, and proves them with a prefill",
        motive="every answer is rewarded, and none is generated",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.edited, proven=True),
    ),
    Attack(
        name="reward-tampered",
        action="reports the full reward for every answer",
        motive="higher rewards",
        defence="check 7: every row scored again",
        reasons={Reason.REWARD_DIFFERS},
        trick=lambda: edits.Rewritten(edits.rewarded),
    ),
    Attack(
        name="length-penalty-tampered",
        action="reports no length penalty, or a bonus that does not exist",
        motive="higher rewards",
        defence="checks 5 and 7: bounds, and every row scored again",
        reasons={Reason.REWARD_DIFFERS, Reason.BOUNDS_REWARD},
        trick=lambda: edits.Rewritten(edits.unpenalised),
    ),
    Attack(
        name="logprobs-tampered",
        action="reports good answers as less likely than they were",
        motive="it steers the training",
        defence="check 10: log-probabilities, compared with the validator's own",
        reasons={Reason.LOG_PROBABILITIES_DIFFER},
        trick=lambda: edits.Rewritten(edits.unlikelier),
    ),
    Attack(
        name="incomplete-group",
        action="omits the worst answer of each group",
        motive="higher mean reward",
        defence=_BY_SEEDS,
        reasons=_GROUPS,
        trick=lambda: edits.Rearranged(edits.without_the_worst),
    ),
    Attack(
        name="rows-reordered",
        action="submits the rows in another order",
        motive="a reader that counts rows scores answers against the wrong prompts",
        defence=_BY_SEEDS,
        reasons=_GROUPS,
        trick=lambda: edits.Rearranged(edits.best_first),
    ),
    Attack(
        name="wrong-run",
        action="submits work of another run",
        motive="two pools pay for the work of one run",
        defence=_BY_IDENTITY,
        reasons=_OTHER_WORK,
        trick=edits.WrongRun,
    ),
    Attack(
        name="other-arithmetic",
        action="declares a data type that the recipe does not allow",
        motive="quantised weights and older versions pass the wider limits of another type; some types have no limits",
        end=End.UNPAID,
        defence=_BY_RECIPE,
        reasons={Reason.BOUNDS_ARITHMETIC},
        trick=lambda: edits.Relabelled(edits.other_arithmetic),
    ),
    Attack(
        name="build-of-its-own",
        action="declares a build of the environment that nobody else has",
        motive="validators can't score its answers again, so that a person would have to decide every file",
        end=End.UNPAID,
        defence=_BY_RECIPE,
        reasons={Reason.BOUNDS_ENVIRONMENT},
        trick=lambda: edits.Relabelled(edits.own_build),
    ),
    Attack(
        name="inflated-units",
        action="claims 1.5 times the tokens of the file",
        motive="payment is per token",
        defence=f"{_BY_BOUNDS}; a claim beyond the lease is refused by bridge and ledger",
        reasons={Reason.BOUNDS_UNITS},
        trick=edits.Inflated,
    ),
    Attack(
        name="one-unit",
        action="changes one row of its file, and claims one token",
        motive="a penalty on claimed units would count one token, but the trainer learns from the whole file",
        defence=f"{_BY_BOUNDS}; the penalty counts all units of the lease",
        reasons={Reason.BOUNDS_UNITS},
        trick=lambda: edits.OneRow(edits.edited, claimed=1),
    ),
    Attack(
        name="endless-answers",
        action="submits programs that never end as answers",
        motive="validators are busy while they run these programs",
        defence=f"{_BY_REPLAY}, before any program runs; scoring has a time limit per file",
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.endless, proven=True),
        harm="one examination, without scoring",
    ),
    Attack(
        name="boxed-garbage",
        action="writes two values into the answer box, one of them right",
        motive="a scorer that searches for the right value finds it",
        defence=f"{_BY_REPLAY}; the environment accepts exactly one value in the box",
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(edits.boxed, proven=True),
    ),
    Attack(
        name="two-pools",
        action="submits a file that it made for another pool of the same run",
        motive="two pools pay for one file",
        defence=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=edits.OtherPool,
    ),
    Attack(
        name="junk",
        action="invents answers, and declares an unknown build of the environment",
        motive="validators used to reject such a file before they checked its proofs, without a penalty",
        defence=f"{_BY_PREFILL}; only computed work can be rejected without a slash",
        reasons=_MODEL,
        trick=lambda: edits.Relabelled(edits.own_build, of=edits.Rewritten(edits.made_up)),
    ),
    Attack(
        name="junk-arithmetic",
        action="invents answers, and declares a data type that the recipe does not allow",
        motive="validators used to reject such a file before they checked its proofs, without a penalty",
        defence=f"{_BY_PREFILL}; only computed work can be rejected without a slash",
        reasons=_MODEL,
        trick=lambda: edits.Relabelled(edits.other_arithmetic, of=edits.Rewritten(edits.made_up)),
    ),
)

_PROOF_ATTACKS = (
    Attack(
        name="proofs-of-another-row",
        action="gives each row its neighbour's proofs",
        motive="text can be changed without computing it",
        defence=_BY_PROOFS,
        reasons=_PROOFS,
        trick=proofs.Shifted,
    ),
    Attack(
        name="proofs-of-another-file",
        action="uses the proofs of another slot's file",
        motive="text can come from anywhere",
        defence=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Borrowed(proofs.other_slot),
    ),
    Attack(
        name="proofs-of-another-node",
        action="uses the proofs of another node's file",
        motive="one node computes for many",
        defence=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Borrowed(proofs.other_node),
    ),
    Attack(
        name="constant-proof",
        action="submits constant polynomials as proofs",
        motive="no hidden states are computed; with the paper's limits it passes on Gaussian states",
        defence=_BY_PROOFS,
        reasons=_PROOFS,
        trick=lambda: proofs.Forged(proofs.constant),
    ),
    Attack(
        name="chosen-modulus",
        action="chooses a modulus with which one proof fits many states",
        motive="it computes one proof and reuses it",
        defence=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.chosen_modulus),
    ),
    Attack(
        name="missing-proofs",
        action="omits proofs",
        motive="it computes nothing, if a missing proof passes",
        defence=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.left_out),
    ),
    Attack(
        name="surplus-proofs",
        action="submits two proofs per interval",
        motive="one of the two may fit; some verifiers crash",
        defence=_BY_PROOFS,
        reasons=_MALFORMED,
        trick=lambda: proofs.Forged(proofs.twice),
    ),
)

_ENCODINGS = (
    Attack(
        name="null-proofs",
        action="writes nulls in place of proofs",
        motive="a reader that mistakes a null for a failure of its own accepts the row",
        defence=_BY_FORMAT,
        reasons={Reason.FORMAT_SCHEMA},
        trick=lambda: encodings.Encoded(encodings.null_proofs),
    ),
    Attack(
        name="not-finite",
        action="writes NaN or infinity as a number",
        motive="comparisons with NaN are false, and NaN spoils the trainer's sums",
        defence=_BY_FORMAT,
        reasons={Reason.FORMAT_NOT_FINITE},
        trick=encodings.NotFinite,
    ),
    Attack(
        name="extra-columns",
        action="adds a column",
        motive="the column reaches readers that load every column",
        defence=_BY_FORMAT,
        reasons={Reason.FORMAT_SCHEMA},
        trick=lambda: encodings.Encoded(encodings.extra_column),
    ),
    Attack(
        name="wrong-types",
        action="writes rewards as text",
        motive="it crashes readers",
        defence=_BY_FORMAT,
        reasons={Reason.FORMAT_SCHEMA},
        trick=lambda: encodings.Encoded(encodings.wrong_types),
    ),
    Attack(
        name="ten-million-rows",
        action="submits ten million empty rows",
        motive="it blocks validators",
        defence=_BY_FORMAT,
        reasons=_SIZE,
        trick=encodings.ManyRows,
    ),
    Attack(
        name="bomb",
        action="submits a kilobyte that decompresses to half a gigabyte",
        motive="a validator that crashes judges nobody",
        defence=_BY_FORMAT,
        reasons=_SIZE,
        trick=encodings.Bomb,
    ),
    Attack(
        name="not-parquet",
        action="submits random bytes",
        motive="it computes nothing",
        defence=_BY_FORMAT,
        reasons={Reason.FORMAT_UNREADABLE},
        trick=encodings.NotParquet,
    ),
)

_COPIES = (
    Attack(
        name="replayed",
        action="submits one file for every slot",
        motive="all slots are paid for the work of one",
        defence=_BY_IDENTITY,
        reasons=_OTHER_WORK,
        trick=copies.Replayed,
    ),
    Attack(
        name="replayed-reencoded",
        action="submits one slot's samples for every slot, re-encoded with that slot's header and another hash",
        motive="all slots are paid for the work of one",
        defence=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=copies.Reencoded,
    ),
    Attack(
        name="two-nodes-same-rollouts",
        action="submits the work of another node of its owner",
        motive="one machine is paid as two",
        defence=_BY_SEEDS,
        reasons=_PROMPTS,
        trick=copies.SameAsAnother,
    ),
)

_BY_DIALOGUES = "check 11: every dialogue, replayed in the environment"
_REPLIES = {Reason.DIALOGUE_REPLY}
_ENDS = {Reason.DIALOGUE_END}

_DIALOGUES = (
    Attack(
        name="forged-reply",
        action="gives the model other replies than the environment's",
        motive="the model needs no tool if a reply has the answer; or it steers the training",
        defence=_BY_DIALOGUES,
        reasons=_REPLIES,
        trick=lambda: dialogues.Staged(dialogues.forged_reply),
        dialogues=True,
    ),
    Attack(
        name="other-environment-state",
        action="plays a dialogue with the environment's state of another prompt",
        motive="it plays a state whose answer it knows",
        defence=_BY_DIALOGUES,
        reasons=_REPLIES,
        trick=lambda: dialogues.Staged(dialogues.other_state),
        dialogues=True,
    ),
    Attack(
        name="early-end",
        action="ends each dialogue after its first message",
        motive="later turns have the longest context and cost most",
        defence=f"{_BY_DIALOGUES}; few rows are excused where a call may have hit a limit",
        reasons=_ENDS,
        trick=lambda: dialogues.Staged(dialogues.early_end),
        dialogues=True,
    ),
    Attack(
        name="late-end",
        action="goes on after the end of a dialogue with an invented reply",
        motive="the model has another try, and more tokens are paid",
        defence=_BY_DIALOGUES,
        reasons=_ENDS,
        trick=lambda: dialogues.Staged(dialogues.late_end),
        dialogues=True,
    ),
    Attack(
        name="skipped-turn",
        action="skips a message of the model, and gives the replies to two messages at once",
        motive="fewer turns to draw",
        defence=_BY_DIALOGUES,
        reasons=_REPLIES,
        trick=lambda: dialogues.Staged(dialogues.skipped_turn),
        dialogues=True,
    ),
    Attack(
        name="extra-turn",
        action="plays more turns than the recipe allows",
        motive="the model has another try, and more tokens are paid",
        defence=f"{_BY_BOUNDS}; {_BY_DIALOGUES}",
        reasons={Reason.BOUNDS_TURNS, Reason.DIALOGUE_END},
        trick=lambda: dialogues.Staged(dialogues.extra_turn),
        dialogues=True,
    ),
    Attack(
        name="retokenised-history",
        action="decodes the history and encodes it again before each turn",
        motive="it uses an ordinary agent framework",
        defence=_BY_PREFILL,
        reasons=_MODEL,
        trick=lambda: dialogues.OtherTurns(dialogues.encoded_again, proven=False),
        dialogues=True,
    ),
    Attack(
        name="noise-restarted",
        action="draws each turn with the noise of the sample's first tokens",
        motive="it can try several histories for the same draws",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: dialogues.OtherTurns(dialogues.noise_restarted, proven=True),
        dialogues=True,
    ),
    Attack(
        name="best-of-n-turn",
        action="draws each turn four times and goes on with the most likely one",
        motive="higher rewards",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: dialogues.OtherTurns(dialogues.best_turns, proven=False),
        dialogues=True,
    ),
    Attack(
        name="injected-role",
        action="encodes control tokens in replies, as if a tool had echoed them",
        motive="a message of another role steers the model",
        defence=f"{_BY_DIALOGUES}; texts of replies are encoded without control tokens",
        reasons=_REPLIES,
        trick=lambda: dialogues.Staged(dialogues.injected_role),
        dialogues=True,
    ),
    Attack(
        name="given-as-drawn",
        action="claims tokens of replies as drawn ones",
        motive="payment is per drawn token",
        defence=_BY_REPLAY,
        reasons=_REPLAY,
        trick=lambda: edits.Rewritten(dialogues.given_as_drawn, proven=True),
        dialogues=True,
    ),
)

_REFUSED = (
    Attack(
        name="skipped-index",
        action="leases slots, and submits only those with a higher mean reward than earlier slots",
        motive="higher mean reward",
        end=End.REFUSED,
        defence="the orchestrator: throttles nodes that deliver too small a share of their leases",
        trick=slots.PickySlots,
        cost="its delivery rate, then throttled leases",
    ),
    Attack(
        name="stale-step",
        action="requests slots of a step that is over",
        motive="it could submit old files",
        end=End.REFUSED,
        defence="the orchestrator: a step outside the run's window has no slots",
        trick=lambda: slots.OtherStep(slots.STALE),
    ),
    Attack(
        name="future-step",
        action="requests slots of a future step",
        motive="it could work ahead with the present version",
        end=End.REFUSED,
        defence="the orchestrator: a step outside the run's window has no slots",
        trick=lambda: slots.OtherStep(slots.FUTURE),
    ),
    Attack(
        name="swapped-upload",
        action="signs one file and uploads another",
        motive="it could choose the file afterwards",
        end=End.REFUSED,
        defence="the object store: an object's key is the SHA-256 of its bytes",
        delivery=deliveries.SwappedUpload,
    ),
    Attack(
        name="no-upload",
        action="submits files that it never uploads",
        motive="it is paid if the ledger pays for files that no validator can judge",
        end=End.EXPIRES,
        defence="the orchestrator relays no work without its file; work that the node submits itself expires",
        delivery=deliveries.NoUpload,
    ),
    Attack(
        name="ghost",
        action="submits hashes on the ledger itself, and uploads nothing",
        motive="each submission occupies a slot of its step, so that the run stops",
        end=End.EXPIRES,
        defence="the orchestrator: work counts as pending only while the store has its file, and absent files count "
        "against its node",
        delivery=deliveries.Ghost,
        cost="gas, the stake that its submissions lock until they expire, and its leases",
        harm="a few seconds per slot, until the orchestrator has asked the store",
    ),
    Attack(
        name="late-upload",
        action="changes one row, submits on the ledger itself, and uploads once it can know which rows are audited",
        motive="it uploads only if the changed row is not audited",
        defence="the validator: recomputes all rows of a file that was absent at first",
        reasons=_REPLAY,
        trick=lambda: edits.OneRow(edits.edited),
        delivery=deliveries.LateUpload,
        harm="one examination of all rows",
    ),
    Attack(
        name="unleased-upload",
        action="uploads files of slots that it has not leased",
        motive="it fills the pool's store",
        end=End.REFUSED,
        defence="the orchestrator: the store accepts files of live leases only, up to the largest size of such a file",
        delivery=deliveries.UnleasedUpload,
    ),
    Attack(
        name="slot-shopper",
        action="predicts its next slots, and leases those that suit it",
        motive="longer answers, easier prompts, or groups without a training signal",
        end=End.IN_VAIN,
        defence="the lease's salt: only the orchestrator can know a slot's seed before it is leased",
        trick=slots.SlotShopper,
    ),
    Attack(
        name="slow",
        action="works on its slots, and submits them just before their leases expire",
        motive="nothing for itself; the run waits for it at every step",
        end=End.IN_VAIN,
        defence="the orchestrator: the length of leases follows the pool's median delivery time, late slots are leased "
        "again, and one provider gets no more than a third of a step while others ask",
        trick=slots.Slow,
        cost="its delivery rate: work after half of its lease counts as not delivered, and the node is throttled",
        harm="time, up to half of a lease for each of its slots",
    ),
    Attack(
        name="banned-in-between",
        action="continues to work and submit after a ban",
        motive="the ban comes too late for work in progress",
        end=End.REFUSED,
        defence="the orchestrator grants it no more leases; leases from before the ban are valid until they expire, "
        "within the pool's notice period at most",
    ),
)

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        *_WEIGHTS,
        *_DRAWS,
        *_EDITS,
        *_PROOF_ATTACKS,
        *_ENCODINGS,
        *_COPIES,
        *_DIALOGUES,
        *_REFUSED,
    )
}


def find_attack(name: str) -> Attack:
    """Returns the attack of this name.

    Raises:
        NotFound: No attack has this name.
    """
    if name not in ATTACKS:
        raise NotFound(f"there is no cheat {name[:40]!r}", hint=f"there are: {', '.join(ATTACKS)}")
    return ATTACKS[name]
