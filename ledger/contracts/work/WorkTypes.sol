// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

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

/// @notice The orchestrator's leave for a node to do one slot of work.
/// @param poolId The pool.
/// @param run The run within the pool.
/// @param step The step of the run.
/// @param index The slot within (run, step, node).
/// @param node Who may do it.
/// @param version The policy's version.
/// @param digest The policy's version digest.
/// @param groups How many groups are in the slot.
/// @param maxUnits The most work units that may be submitted.
/// @param expiry Unix time in seconds until which work may be submitted.
struct Lease {
    uint256 poolId;
    bytes32 run;
    uint64 step;
    uint32 index;
    address node;
    uint64 version;
    bytes32 digest;
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

/// @dev What is kept of a piece of work: three slots. Reward, penalty and periods follow from the version of the terms.
/// @param node Who did it.
/// @param poolId The pool.
/// @param terms The version of the pool's terms at submission.
/// @param status Where it is.
/// @param outcome The verdict that counts so far.
/// @param reason Its reason code.
/// @param judge Who gave the first verdict.
/// @param since Unix time in seconds at which it came to its status.
/// @param units How much work.
/// @param sha256Hash SHA-256 of the submitted file.
struct Work {
    address node;
    uint32 poolId;
    uint32 terms;
    Status status;
    Outcome outcome;
    uint16 reason;
    address judge;
    uint40 since;
    uint56 units;
    bytes32 sha256Hash;
}

/// @notice Everything that is known of a piece of work.
/// @param node Who did it.
/// @param provider Who answers for it, and is paid.
/// @param poolId The pool.
/// @param units How much work.
/// @param sha256Hash SHA-256 of the submitted file.
/// @param status Where it is.
/// @param outcome The verdict that counts so far.
/// @param reason Its reason code.
/// @param judge Who gave the first verdict; zero if nobody.
/// @param disputer Who disputed it; zero if nobody.
/// @param since Unix time in seconds at which it came to its status.
/// @param deadline Unix time in seconds until which the next step (verdict, dispute, second verdict) may come; zero if
/// none may.
/// @param reward What it pays if accepted, in the token's smallest unit.
/// @param penalty What it costs if forged, in the token's smallest unit.
struct WorkView {
    address node;
    address provider;
    uint256 poolId;
    uint64 units;
    bytes32 sha256Hash;
    Status status;
    Outcome outcome;
    uint16 reason;
    address judge;
    address disputer;
    uint64 since;
    uint64 deadline;
    uint128 reward;
    uint128 penalty;
}
