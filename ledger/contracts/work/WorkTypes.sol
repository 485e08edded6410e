// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The part of its penalty, in basis points, that rejected work costs if its node or provider disputes the rejection
/// and the decision is to reject.
uint256 constant LOST_DISPUTE_BPS = 1_000;

/// @notice Where a piece of work is on its way to money.
enum Status {
    None,
    Submitted,
    Provisional,
    Disputed,
    Final,
    Expired
}

/// @notice What a verdict says. Forged work costs stake; rejected work is only unpaid.
enum Outcome {
    None,
    Accepted,
    Rejected,
    Forged
}

/// @notice The orchestrator's permission for a node to do one slot of work.
/// @param poolId The pool.
/// @param run The run within the pool.
/// @param step The step of the run.
/// @param index The slot within (run, step, node).
/// @param node The node that may do it.
/// @param version The policy's version.
/// @param digest The policy's version digest.
/// @param beaconBlock The block whose hash is part of the slot's seed.
/// @param salt The part of the slot's seed that only the orchestrator knows before it signs the lease.
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
/// @param leaseSignature The orchestrator's EIP-712 `Lease`.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param units How much work it holds.
/// @param nodeSignature The node's EIP-712 `Work`.
struct Submission {
    Lease lease;
    bytes leaseSignature;
    bytes32 sha256Hash;
    uint64 units;
    bytes nodeSignature;
}

/// @notice One item of `judge`. It says what it judges, so that it can't be taken for a verdict on anything else.
/// @param key The work.
/// @param sha256Hash SHA-256 of the file that was judged.
/// @param units How much work was found to be claimed for it.
/// @param decisive Whether it answers a dispute; else it is a first verdict.
/// @param outcome What the validator found.
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
/// @param outcome The outcome that the validator found; it must be the one that stands.
/// @param reason The validator's reason code.
/// @param auditHash Hash of the validator's own audit file.
struct Confirmation {
    bytes32 key;
    bytes32 sha256Hash;
    Outcome outcome;
    uint16 reason;
    bytes32 auditHash;
}

/// @dev The stored state of a piece of work: three slots. Reward, penalty, fees and periods follow from the version of
/// the terms. Validators are stored as seat numbers (see `PoolRoles`); zero means none.
/// @param node The node that did it.
/// @param poolId The pool.
/// @param terms The version of the pool's terms at submission.
/// @param status Its status.
/// @param outcome The verdict that counts so far.
/// @param reason Its reason code.
/// @param since Unix time in seconds at which it reached its status.
/// @param units The submitted work units.
/// @param maxUnits The most work units of its lease.
/// @param judgedBlock The block of the first verdict.
/// @param judge The seat of the validator that gave the first verdict.
/// @param looker The seat of the validator that confirmed it.
/// @param juror The seat of the first validator that contradicted the first verdict in a dispute.
/// @param opinion What that validator found.
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

/// @dev An open or past dispute: one slot.
/// @param disputer Who disputed the first verdict.
/// @param blockNumber The block of the dispute. The hash of the next block orders the validators that may decide it.
/// @param seed 56 bits of that hash; zero until it was recorded.
struct Dispute {
    address disputer;
    uint40 blockNumber;
    uint56 seed;
}

/// @notice Everything that is known of a piece of work.
/// @param node The node that did it.
/// @param provider The provider that is paid for it and answers for it.
/// @param poolId The pool.
/// @param units The submitted work units.
/// @param maxUnits The most work units of its lease.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param status Its status.
/// @param outcome The verdict that counts so far.
/// @param reason Its reason code.
/// @param judge The validator that gave the first verdict; zero if none.
/// @param looker The validator that confirmed it; zero if none.
/// @param disputer Who disputed it; zero if nobody.
/// @param juror The first validator that contradicted the first verdict in a dispute; zero if none.
/// @param opinion What that validator found.
/// @param since Unix time in seconds at which it reached its status.
/// @param deadline Unix time in seconds until which the next step (verdict, dispute, second verdict) may come; zero if
/// none may.
/// @param reward What it pays if accepted, in the token's smallest unit.
/// @param penalty What it costs if forged, in the token's smallest unit.
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
