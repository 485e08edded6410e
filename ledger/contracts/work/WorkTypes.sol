// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The share of the work's penalty, in basis points, that a provider loses if it or its node disputes a rejection,
/// and the other validators uphold the rejection.
uint256 constant LOST_DISPUTE_BPS = 1_000;

/// @notice State of a work record.
enum Status {
    None,
    Submitted,
    Provisional,
    Disputed,
    Final,
    Expired
}

/// @notice Outcome of a verdict. Forged work is slashed; rejected work is only unpaid.
enum Outcome {
    None,
    Accepted,
    Rejected,
    Forged
}

/// @notice Assignment of one slot of work to a node, signed by the orchestrator.
/// @param poolId The pool.
/// @param run The run within the pool.
/// @param step The step of the run.
/// @param index Number of the slot among those of the same run, step and node.
/// @param node The node that may do the work.
/// @param version The policy's version.
/// @param digest The policy's version digest.
/// @param beaconBlock The block whose hash is part of the slot's seed.
/// @param salt Part of the slot's seed; only the orchestrator knows it before it signs the lease.
/// @param groups The number of groups in the slot; a group is the samples of one prompt.
/// @param maxUnits The maximum number of work units that may be submitted. The penalty is locked for all of them.
/// @param expiry Unix time in seconds until which work may be submitted.
struct Lease {
    uint256 poolId;
    bytes32 run;
    uint64 step;
    uint32 index;
    address node;
    uint64 version;
    bytes32 digest;
    uint64 beaconBlock;
    bytes32 salt;
    uint32 groups;
    uint64 maxUnits;
    uint64 expiry;
}

/// @notice One item of `submitBatch`.
/// @param lease The lease.
/// @param leaseSignature The orchestrator's EIP-712 signature of the `Lease`.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param units Work units in the file.
/// @param nodeSignature The node's EIP-712 signature of the `Work`.
struct Submission {
    Lease lease;
    bytes leaseSignature;
    bytes32 sha256Hash;
    uint64 units;
    bytes nodeSignature;
}

/// @notice One item of `judge`. File hash and work units identify the judged submission, so that the verdict can't
/// apply to another one with the same key.
/// @param key The key of the work.
/// @param sha256Hash SHA-256 of the file that was judged.
/// @param units Work units of the submission that was judged.
/// @param decisive Whether the verdict decides a dispute; if not, it is a first verdict.
/// @param outcome The validator's outcome.
/// @param reason The validator's reason code.
/// @param auditHash Hash of the audit file.
struct Verdict {
    bytes32 key;
    bytes32 sha256Hash;
    uint64 units;
    bool decisive;
    Outcome outcome;
    uint16 reason;
    bytes32 auditHash;
}

/// @notice One item of `confirm`: a second look, in which another validator agrees with the first verdict.
/// @param key The key of the work.
/// @param sha256Hash SHA-256 of the file that was examined.
/// @param outcome The validator's outcome; it must equal that of the first verdict.
/// @param reason The validator's reason code.
/// @param auditHash Hash of the validator's own audit file.
struct Confirmation {
    bytes32 key;
    bytes32 sha256Hash;
    Outcome outcome;
    uint16 reason;
    bytes32 auditHash;
}

/// @dev Stored state of a work item, in three storage slots. Reward, penalty, fees and periods are computed from the
/// version of the terms. Validators are stored by their seat numbers (see `PoolRoles`); zero means that there is none.
/// @param node The node that did the work.
/// @param poolId The pool.
/// @param terms The version of the pool's terms at submission.
/// @param status The status.
/// @param outcome The outcome of the first verdict; after the work is final, its final outcome.
/// @param reason The reason code of the first verdict; after a decided dispute, that of the verdict which decided it.
/// @param since Unix time in seconds at which the work reached its status.
/// @param units The number of submitted work units.
/// @param maxUnits The maximum number of work units of its lease.
/// @param judgedBlock The block of the first verdict.
/// @param judge The seat of the validator that gave the first verdict.
/// @param looker The seat of the validator that confirmed the first verdict by a second look.
/// @param juror The seat of the validator whose verdict contradicted the first one in a dispute, without deciding it.
/// @param opinion The outcome in that validator's verdict.
/// @param sha256Hash SHA-256 of the submitted file.
struct Work {
    address node;
    uint32 poolId;
    uint32 terms;
    Status status;
    Outcome outcome;
    uint16 reason;
    uint40 since;
    uint40 units;
    uint40 maxUnits;
    uint48 judgedBlock;
    uint16 judge;
    uint16 looker;
    uint16 juror;
    Outcome opinion;
    bytes32 sha256Hash;
}

/// @dev State of an open or past dispute, in one storage slot.
/// @param disputer The account that disputed the first verdict.
/// @param blockNumber The block of the dispute. The hash of the next block determines the order of validators.
/// @param seed 56 bits of that hash; zero until it is recorded.
struct Dispute {
    address disputer;
    uint40 blockNumber;
    uint56 seed;
}

/// @notice A work record, as `workOf` returns it.
/// @param node The node that did the work.
/// @param provider The node's provider, which gets the reward or loses the penalty.
/// @param poolId The pool.
/// @param units The number of submitted work units.
/// @param maxUnits The maximum number of work units of its lease.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param status The status.
/// @param outcome The outcome of the first verdict; after the work is final, its final outcome.
/// @param reason The reason code of the first verdict; after a decided dispute, that of the verdict which decided it.
/// @param judge The validator that gave the first verdict; zero if there is none.
/// @param looker The validator that confirmed the first verdict by a second look; zero if there is none.
/// @param disputer The account that disputed the first verdict; zero if there is none.
/// @param juror The validator whose verdict contradicted the first one in a dispute, without deciding it; zero if there
/// is none.
/// @param opinion The outcome in that validator's verdict.
/// @param since Unix time in seconds at which the work reached its status.
/// @param deadline Unix time in seconds until which the next step (verdict, dispute or decision) is possible; zero if
/// there is none.
/// @param reward The reward if the work is accepted, in the token's smallest unit.
/// @param penalty The penalty if the work is forged, in the token's smallest unit.
struct WorkView {
    address node;
    address provider;
    uint256 poolId;
    uint64 units;
    uint64 maxUnits;
    bytes32 sha256Hash;
    Status status;
    Outcome outcome;
    uint16 reason;
    address judge;
    address looker;
    address disputer;
    address juror;
    Outcome opinion;
    uint64 since;
    uint64 deadline;
    uint128 reward;
    uint128 penalty;
}
