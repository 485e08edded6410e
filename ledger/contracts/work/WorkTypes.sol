// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The share of the work's penalty, in basis points, that a provider loses if its side disputes a rejection that
/// is then upheld.
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
/// @param index The slot within (run, step, node).
/// @param node The node that may do it.
/// @param version The policy's version.
/// @param digest The policy's version digest.
/// @param beaconBlock The block whose hash is part of the slot's seed.
/// @param salt Part of the slot's seed; only the orchestrator knows it before it signs the lease.
/// @param groups The number of groups in the slot.
/// @param maxUnits The most work units that may be submitted. The penalty is locked for all of them.
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

/// @notice One item of `judge`. It names the judged submission, so that it can't apply to another one.
/// @param key The work.
/// @param sha256Hash SHA-256 of the file that was judged.
/// @param units Work units of the submission that was judged.
/// @param decisive Whether it decides a dispute; otherwise it is a first verdict.
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

/// @notice One item of `confirm`: a second look by another validator that agrees with the first verdict.
/// @param key The work.
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

/// @dev Stored state of a work item, in three storage slots. Reward, penalty, fees and periods follow from the version
/// of the terms. Validators are stored as seat numbers (see `PoolRoles`); zero means none.
/// @param node The node that did the work.
/// @param poolId The pool.
/// @param terms The version of the pool's terms at submission.
/// @param status The status.
/// @param outcome The latest verdict.
/// @param reason The reason code of that verdict.
/// @param since Unix time in seconds at which it reached its status.
/// @param units The submitted work units.
/// @param maxUnits The most work units of its lease.
/// @param judgedBlock The block of the first verdict.
/// @param judge The seat of the validator that gave the first verdict.
/// @param looker The seat of the validator that confirmed it.
/// @param juror The seat of the first validator that contradicted the first verdict in a dispute.
/// @param opinion The outcome that this validator voted for.
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

/// @dev An open or past dispute, in one storage slot.
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
/// @param provider The node's provider, which is paid or slashed.
/// @param poolId The pool.
/// @param units The submitted work units.
/// @param maxUnits The most work units of its lease.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param status The status.
/// @param outcome The latest verdict.
/// @param reason The reason code of that verdict.
/// @param judge The validator that gave the first verdict; zero if none.
/// @param looker The validator that confirmed it; zero if none.
/// @param disputer The account that disputed it; zero if none.
/// @param juror The first validator that contradicted the first verdict in a dispute; zero if none.
/// @param opinion The outcome that this validator voted for.
/// @param since Unix time in seconds at which it reached its status.
/// @param deadline Deadline of the next step (verdict, dispute, decision), Unix time in seconds; zero if there is none.
/// @param reward The reward if accepted, in the token's smallest unit.
/// @param penalty The penalty if forged, in the token's smallest unit.
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
