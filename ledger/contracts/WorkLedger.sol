// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MusterToken} from "./MusterToken.sol";
import {IComputePools, MAX_FEES, Opening, Terms} from "./interfaces/IComputePools.sol";
import {IComputeRegistry} from "./interfaces/IComputeRegistry.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {Rewards} from "./work/Rewards.sol";
import {WorkSignatures} from "./work/WorkSignatures.sol";
import {
    Confirmation,
    Dispute,
    LOST_DISPUTE_BPS,
    Lease,
    Outcome,
    Status,
    Submission,
    Verdict,
    Work,
    WorkView
} from "./work/WorkTypes.sol";

/// @title Ledger of work: submissions, verdicts, disputes and payment
/// @notice A node submits work under a lease. A validator judges it. The verdict can be disputed once. Then the work is
/// final: it is paid, unpaid or slashed. If validators miss a deadline, the node loses no stake: without a first
/// verdict the work expires, and without a decision of its dispute there is no penalty.
///
/// The pool's other validators decide a dispute. Their order is random: a validator's rank depends on a hash of the
/// work's key, the hash of the block after the dispute, and the validator's address. The dispute period is divided into
/// turns of equal length. From its own turn on, until the end of the period, a validator may decide. In a pool with
/// `CONFIRMED_FROM` validators or more, a validator that contradicts the first verdict does not decide alone: after the
/// verdict of one more validator, the outcome is the median of the three verdicts.
/// @dev A call that must come before a deadline is still allowed if the block's timestamp equals the deadline. A call
/// that must come after a deadline needs a later timestamp. `submitBatch`, `judge` and `confirm` skip refused items and
/// emit an event for each of them.
contract WorkLedger is WorkSignatures, Rewards {
    /// @dev Cache for one batch of values read from ComputePools, because most items have the same pool and terms.
    /// @param termsPool The pool of `terms`.
    /// @param termsVersion The version of `terms`.
    /// @param terms The terms that were read last.
    /// @param seatPool The pool of `seat`.
    /// @param seat The caller's seat number in that pool; zero if it is not a validator there.
    struct Docket {
        uint256 termsPool;
        uint256 termsVersion;
        Terms terms;
        uint256 seatPool;
        uint16 seat;
    }

    /// @notice The maximum number of items in a batch.
    uint256 public constant MAX_BATCH = 256;
    /// @notice In a pool with this many validators or more, at least two of them are needed to overturn a verdict.
    uint256 public constant CONFIRMED_FROM = 4;
    /// @notice The ComputePools contract.
    IComputePools public immutable pools;
    /// @notice The ComputeRegistry contract.
    IComputeRegistry public immutable registry;
    /// @notice The StakeManager contract.
    IStakeManager public immutable stakeManager;
    /// @notice The DomainRegistry contract, which holds the recipients of penalties.
    IDomainRegistry public immutable domains;

    mapping(bytes32 key => Work) private _works;
    mapping(bytes32 key => Dispute) private _disputes;

    /// @notice Work was submitted; its reward and fees are reserved, and stake is locked for its penalty.
    event WorkSubmitted(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        bytes32 run,
        uint64 step,
        uint32 index,
        uint64 version,
        bytes32 digest,
        uint64 beaconBlock,
        bytes32 salt,
        uint32 groups,
        uint64 maxUnits,
        bytes32 sha256Hash,
        uint64 units
    );
    /// @notice An item of `submitBatch` was refused; `reason` is the revert data.
    event WorkRefused(bytes32 indexed key, bytes reason);
    /// @notice A validator gave a verdict. If `decisive`, the verdict ended a dispute and made the work final.
    event VerdictGiven(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        address validator,
        Outcome outcome,
        uint16 reason,
        bytes32 auditHash,
        bool decisive
    );
    /// @notice A validator contradicted the first verdict in a dispute; the verdict of another validator decides next.
    event VerdictContradicted(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        address validator,
        Outcome outcome,
        uint16 reason,
        bytes32 auditHash
    );
    /// @notice Another validator examined the work, too (a second look), and agrees with the first verdict.
    event VerdictConfirmed(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        address validator,
        uint16 reason,
        bytes32 auditHash
    );
    /// @notice An item of `judge` or `confirm` was refused; `reason` is the selector of the error.
    event VerdictRefused(bytes32 indexed key, address indexed validator, bytes4 reason);
    /// @notice A verdict was disputed.
    event WorkDisputed(
        uint256 indexed poolId, address indexed node, bytes32 indexed key, address disputer, bytes32 evidenceHash
    );
    /// @notice The node or its provider disputed a rejection, and the other validators upheld it; the provider lost the
    /// amount `taken` of its stake.
    event DisputeLost(uint256 indexed poolId, address indexed node, bytes32 indexed key, uint256 taken);
    /// @notice Work is final: its provider may claim the reward `paid`, and lost the stake `slashed` for forged work.
    event WorkFinal(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        Outcome outcome,
        uint256 paid,
        uint256 slashed
    );
    /// @notice No validator judged the work before the deadline: it is neither paid nor slashed.
    event WorkExpired(uint256 indexed poolId, address indexed node, bytes32 indexed key);

    /// @notice The batch has `length` items; at most `limit` are allowed.
    error BatchTooLong(uint256 length, uint256 limit);
    /// @notice The lease expired at `expiry`.
    error LeaseExpired(uint64 expiry);
    /// @notice A submission must have 1 to `maxUnits` work units, and a lease at most 2^40 - 1.
    error UnitsOutOfRange(uint64 units, uint64 maxUnits);
    /// @notice Work was already submitted under this key.
    error WorkExists(bytes32 key);
    /// @notice The caller is not the node, and the node did not sign.
    error NodeNotWilling(address node);
    /// @notice There is no work with this key, or its status does not allow this call.
    error WrongStatus(bytes32 key, Status status);
    /// @notice The deadline for this call has passed.
    error TooLate(bytes32 key, uint256 deadline);
    /// @notice The caller is not a validator of the work's pool.
    error NotValidator(uint256 poolId, address caller);
    /// @notice The caller is the node or its provider, or has judged, confirmed or disputed this work before.
    error ConflictOfInterest(bytes32 key, address caller);
    /// @notice The validator's turn to decide the dispute has not begun, or the order of the turns is not known yet,
    /// because it depends on the hash of the block after the dispute. `turnOf` returns the beginning of the turn.
    error NotYourTurn(bytes32 key, address caller);
    /// @notice The verdict is about another file, or another number of work units, than was submitted under this key.
    error OtherSubmission(bytes32 key, bytes32 sha256Hash, uint64 units);
    /// @notice The outcome of a verdict must be accepted, rejected or forged.
    error NoOutcome(bytes32 key);
    /// @notice The pool does not pay for a second look at this work, or another validator already took that look.
    error NoLookWanted(bytes32 key);
    /// @notice A confirmation must have the outcome of the first verdict; to disagree, dispute the verdict.
    error OutcomeDiffers(bytes32 key, Outcome outcome);
    /// @notice The caller may not dispute the verdict. The pool's validators may, except the one that gave it. The node
    /// and its provider may, unless the work was accepted.
    error NotDisputant(bytes32 key, address caller);
    /// @notice The signature expired at `deadline`.
    error SignatureExpired(uint256 deadline);

    /// @notice Sets the other contracts, which can't be changed later.
    /// @param pools_ The ComputePools contract.
    /// @param registry_ The ComputeRegistry contract.
    /// @param stakeManager_ The StakeManager contract.
    /// @param token_ The token of rewards.
    /// @param domains_ The DomainRegistry contract.
    constructor(
        IComputePools pools_,
        IComputeRegistry registry_,
        IStakeManager stakeManager_,
        MusterToken token_,
        IDomainRegistry domains_
    ) Rewards(token_) {
        pools = pools_;
        registry = registry_;
        stakeManager = stakeManager_;
        domains = domains_;
    }

    /// @notice Submits work under a lease, reserves its reward and fees, and locks stake for its penalty. Any account
    /// may call this with the node's signature. The reward is for the submitted units. The penalty is for all units of
    /// the lease: otherwise a node could forge work at little risk by submitting few units.
    /// @param lease The lease.
    /// @param leaseSignature The orchestrator's EIP-712 signature of the `Lease`.
    /// @param sha256Hash SHA-256 of the file.
    /// @param units Work units in the file, 1 to the lease's `maxUnits`.
    /// @param nodeSignature The node's EIP-712 signature of the `Work`; may be empty if the node is the caller.
    function submitWork(
        Lease calldata lease,
        bytes calldata leaseSignature,
        bytes32 sha256Hash,
        uint64 units,
        bytes calldata nodeSignature
    ) external {
        bytes32 key = _keyOf(lease);
        if (_works[key].status != Status.None) revert WorkExists(key);
        if (block.timestamp > lease.expiry) revert LeaseExpired(lease.expiry);
        if (units == 0 || units > lease.maxUnits || lease.maxUnits > type(uint40).max) {
            revert UnitsOutOfRange(units, lease.maxUnits);
        }
        bytes32 hash = _hashLease(lease);
        if (msg.sender != lease.node && _workSigner(hash, sha256Hash, units, nodeSignature) != lease.node) {
            revert NodeNotWilling(lease.node);
        }
        (address provider, uint32 terms, uint128 penalty) = pools.openWork(
            Opening({
                poolId: lease.poolId,
                node: lease.node,
                leaseSigner: _leaseSigner(hash, leaseSignature),
                units: units,
                maxUnits: lease.maxUnits,
                expiry: lease.expiry
            })
        );
        Work storage work = _works[key];
        work.node = lease.node;
        work.poolId = uint32(lease.poolId); // Safe: ComputePools creates no pool id of more than 32 bits.
        work.terms = terms;
        work.status = Status.Submitted;
        work.since = uint40(block.timestamp);
        work.units = uint40(units);
        work.maxUnits = uint40(lease.maxUnits);
        work.sha256Hash = sha256Hash;
        _emitSubmitted(key, lease, sha256Hash, units);
        stakeManager.lockWork(provider, penalty);
    }

    /// @notice Submits several work items; a refused item does not affect the others.
    /// @param items At most `MAX_BATCH`; each needs its node's signature.
    function submitBatch(Submission[] calldata items) external {
        _requireBatch(items.length);
        for (uint256 i; i < items.length; ++i) {
            Submission calldata item = items[i];
            try this.submitWork(item.lease, item.leaseSignature, item.sha256Hash, item.units, item.nodeSignature) {}
            catch (bytes memory reason) {
                emit WorkRefused(_keyOf(item.lease), reason);
            }
        }
    }

    /// @notice Records verdicts: first ones on submitted work, decisive ones on disputed work. A verdict contains the
    /// file's hash and the work units that the validator judged, because after a chain reorganisation another
    /// submission may have the same key. A refused item does not affect the others. Only validators of the work's pool
    /// may call this.
    /// @param verdicts At most `MAX_BATCH`.
    function judge(Verdict[] calldata verdicts) external {
        _requireBatch(verdicts.length);
        Docket memory docket;
        for (uint256 i; i < verdicts.length; ++i) {
            bytes4 refusal = _judge(verdicts[i], docket);
            if (refusal != 0) emit VerdictRefused(verdicts[i].key, msg.sender, refusal);
        }
    }

    /// @notice Records second looks that agree with provisional verdicts. The pool pays for a second look at a share of
    /// its work. The hash of the block after the first verdict selects this work, so the first validator can't know
    /// beforehand whether its verdict is examined. A second look must be recorded within the challenge period, and
    /// within 256 blocks, because the EVM can't read older block hashes. A refused item does not affect the others.
    /// Only validators of the work's pool may call this, except the one that gave the first verdict.
    /// @param looks At most `MAX_BATCH`.
    function confirm(Confirmation[] calldata looks) external {
        _requireBatch(looks.length);
        Docket memory docket;
        for (uint256 i; i < looks.length; ++i) {
            bytes4 refusal = _confirm(looks[i], docket);
            if (refusal != 0) emit VerdictRefused(looks[i].key, msg.sender, refusal);
        }
    }

    /// @notice Disputes a provisional verdict within the challenge period; this is possible once. The pool's validators
    /// may do it, except the one that gave the verdict. The node and its provider may do it, unless the work was
    /// accepted: they could not gain by such a dispute, but validators would have to recompute all of the work. Any
    /// account may call this with the node's signature. If the node or its provider disputes a rejection, and the other
    /// validators uphold it, the provider loses `LOST_DISPUTE_BPS` of the work's penalty.
    /// @param key The key of the work.
    /// @param evidenceHash Hash of the evidence for the dispute.
    /// @param deadline Unix time in seconds until which the signature is valid; ignored without a signature.
    /// @param signature The node's EIP-712 signature of the `Dispute`; empty if the caller itself disputes.
    function dispute(bytes32 key, bytes32 evidenceHash, uint256 deadline, bytes calldata signature) external {
        Work storage work = _works[key];
        if (work.status != Status.Provisional) revert WrongStatus(key, work.status);
        uint256 end = _deadline(Status.Provisional, work.since, _termsOf(work));
        if (block.timestamp > end) revert TooLate(key, end);
        address disputer = _disputant(key, work, evidenceHash, deadline, signature);
        work.status = Status.Disputed;
        work.since = uint40(block.timestamp);
        _disputes[key] = Dispute({disputer: disputer, blockNumber: uint40(block.number), seed: 0});
        emit WorkDisputed(work.poolId, work.node, key, disputer, evidenceHash);
    }

    /// @notice Records the block hashes that determine the order of validators in disputes. The EVM can read a hash for
    /// 256 blocks only. `judge` records it as well. So this function is needed only if no validator calls `judge` for
    /// the dispute within 256 blocks. Skips keys without an open dispute. Any account may call this.
    /// @param keys At most `MAX_BATCH`.
    function drawJuries(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        for (uint256 i; i < keys.length; ++i) {
            if (_works[keys[i]].status == Status.Disputed) _draw(_disputes[keys[i]]);
        }
    }

    /// @notice Makes work final if its challenge or dispute period is over. Skips all other keys. Any account may call
    /// this.
    /// @param keys At most `MAX_BATCH`.
    function finalize(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        Docket memory docket;
        for (uint256 i; i < keys.length; ++i) _finalize(keys[i], docket);
    }

    /// @notice Expires work that no validator judged before the deadline: it is neither paid nor slashed. Skips all
    /// other keys. Any account may call this.
    /// @param keys At most `MAX_BATCH`.
    function expire(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        Docket memory docket;
        for (uint256 i; i < keys.length; ++i) {
            Work storage work = _works[keys[i]];
            if (work.status != Status.Submitted) continue;
            Terms memory terms = _termsOf(work, docket);
            if (block.timestamp <= _deadline(Status.Submitted, work.since, terms)) continue;
            work.status = Status.Expired;
            work.since = uint40(block.timestamp);
            emit WorkExpired(work.poolId, work.node, keys[i]);
            pools.settle(work.poolId, _reserved(work, terms), 0);
            stakeManager.unlockWork(registry.payeeOf(work.node), _product(terms.penaltyPerUnit, work.maxUnits));
        }
    }

    /// @notice Returns a work record; its status is `None` if nothing was submitted under the key.
    /// @param key The key of the work.
    function workOf(bytes32 key) external view returns (WorkView memory) {
        Work storage work = _works[key];
        uint256 poolId = work.poolId;
        Terms memory terms = _termsOf(work);
        return WorkView({
            node: work.node,
            provider: registry.payeeOf(work.node),
            poolId: poolId,
            units: work.units,
            maxUnits: work.maxUnits,
            sha256Hash: work.sha256Hash,
            status: work.status,
            outcome: work.outcome,
            reason: work.reason,
            judge: _validatorAt(poolId, work.judge),
            looker: _validatorAt(poolId, work.looker),
            disputer: _disputes[key].disputer,
            juror: _validatorAt(poolId, work.juror),
            opinion: work.opinion,
            since: work.since,
            deadline: _deadline(work.status, work.since, terms),
            reward: _product(terms.pricePerUnit, work.units),
            penalty: _product(terms.penaltyPerUnit, work.maxUnits)
        });
    }

    /// @notice Returns the Unix time in seconds from which a validator may decide a dispute. Returns zero if the
    /// validator may not decide it, or if the block hash that determines the order can't be read: the block may not
    /// exist yet, or be too old.
    /// @param key The key of the work.
    /// @param validator The validator's address.
    function turnOf(bytes32 key, address validator) external view returns (uint256) {
        Work storage work = _works[key];
        Dispute memory entry = _disputes[key];
        if (work.status != Status.Disputed) return 0;
        if (entry.seed == 0) entry.seed = _seedOf(entry.blockNumber);
        (bool found, uint256 opensAt,) = _turn(key, work, entry, validator, _termsOf(work).disputePeriod);
        return found && entry.seed != 0 ? opensAt : 0;
    }

    /// @notice Returns whether the pool pays for a second look at provisional work, and none was recorded yet. Returns
    /// false, too, if the hash of the block after the first verdict can't be read: the block may not exist yet, or be
    /// too old.
    /// @param key The key of the work.
    function lookWanted(bytes32 key) external view returns (bool) {
        Work storage work = _works[key];
        return work.status == Status.Provisional && work.looker == 0 && _lookDrawn(key, work, _termsOf(work));
    }

    /// @dev Records one verdict; returns zero, or the selector of the error if it is refused.
    function _judge(Verdict calldata verdict, Docket memory docket) private returns (bytes4) {
        bytes32 key = verdict.key;
        Work storage work = _works[key];
        Status status = work.status;
        if (status != (verdict.decisive ? Status.Disputed : Status.Submitted)) return WrongStatus.selector;
        if (verdict.sha256Hash != work.sha256Hash || verdict.units != work.units) return OtherSubmission.selector;
        if (verdict.outcome == Outcome.None) return NoOutcome.selector;
        (address node, uint256 poolId) = (work.node, work.poolId);
        uint16 seat = _seatOf(poolId, docket);
        if (seat == 0) return NotValidator.selector;
        if (msg.sender == node || msg.sender == registry.payeeOf(node)) return ConflictOfInterest.selector;
        Terms memory terms = _termsOf(work, docket);
        if (block.timestamp > _deadline(status, work.since, terms)) return TooLate.selector;
        if (status == Status.Disputed) return _decide(verdict, work, terms, seat);
        emit VerdictGiven(poolId, node, key, msg.sender, verdict.outcome, verdict.reason, verdict.auditHash, false);
        work.reason = verdict.reason;
        work.status = Status.Provisional;
        work.outcome = verdict.outcome;
        work.since = uint40(block.timestamp);
        work.judgedBlock = uint48(block.number);
        work.judge = seat;
        return 0;
    }

    /// @dev Records one verdict on disputed work; returns zero, or the selector of the error if it is refused.
    function _decide(Verdict calldata verdict, Work storage work, Terms memory terms, uint16 seat)
        private
        returns (bytes4)
    {
        bytes32 key = verdict.key;
        Dispute storage entry = _disputes[key];
        bool spoken = seat == work.judge || seat == work.looker || seat == work.juror;
        if (spoken || msg.sender == entry.disputer) return ConflictOfInterest.selector;
        if (!_draw(entry)) return NotYourTurn.selector;
        (, uint256 opensAt, uint256 validators) = _turn(key, work, entry, msg.sender, terms.disputePeriod);
        if (block.timestamp < opensAt) return NotYourTurn.selector;
        (uint256 poolId, address node, Outcome first) = (work.poolId, work.node, work.outcome);
        bool alone = work.juror == 0;
        if (alone && validators >= CONFIRMED_FROM && verdict.outcome != first) {
            work.juror = seat;
            work.opinion = verdict.outcome;
            emit VerdictContradicted(
                poolId, node, key, msg.sender, verdict.outcome, verdict.reason, verdict.auditHash
            );
            return 0;
        }
        emit VerdictGiven(poolId, node, key, msg.sender, verdict.outcome, verdict.reason, verdict.auditHash, true);
        work.reason = verdict.reason;
        Outcome outcome = alone ? verdict.outcome : _median(first, work.opinion, verdict.outcome);
        _close(key, work, terms, outcome, seat, verdict.outcome);
        if (first == Outcome.Rejected && outcome == Outcome.Rejected) _chargeDispute(key, work, terms, poolId, node);
        return 0;
    }

    /// @dev Slashes the provider for a lost dispute, if the node or the provider opened it. The stake that the work had
    /// locked covers the amount.
    function _chargeDispute(bytes32 key, Work storage work, Terms memory terms, uint256 poolId, address node) private {
        address provider = registry.payeeOf(node);
        address disputer = _disputes[key].disputer;
        if (disputer != node && disputer != provider) return;
        uint128 penalty = _product(terms.penaltyPerUnit, work.maxUnits);
        uint128 part = uint128(uint256(penalty) * LOST_DISPUTE_BPS / 10_000);
        emit DisputeLost(poolId, node, key, _slash(poolId, provider, part));
    }

    /// @dev Slashes stake, which goes to the domain's reserve, or is burned if the domain has none. Returns the amount.
    function _slash(uint256 poolId, address provider, uint128 amount) private returns (uint128) {
        return stakeManager.slash(provider, amount, domains.reserveOf(pools.domainOf(poolId)));
    }

    /// @dev Records one second look; returns zero, or the selector of the error if it is refused.
    function _confirm(Confirmation calldata look, Docket memory docket) private returns (bytes4) {
        bytes32 key = look.key;
        Work storage work = _works[key];
        if (work.status != Status.Provisional) return WrongStatus.selector;
        if (look.sha256Hash != work.sha256Hash) return OtherSubmission.selector;
        if (look.outcome != work.outcome) return OutcomeDiffers.selector;
        (address node, uint256 poolId) = (work.node, work.poolId);
        uint16 seat = _seatOf(poolId, docket);
        if (seat == 0) return NotValidator.selector;
        if (msg.sender == node || msg.sender == registry.payeeOf(node) || seat == work.judge) {
            return ConflictOfInterest.selector;
        }
        Terms memory terms = _termsOf(work, docket);
        if (block.timestamp > _deadline(Status.Provisional, work.since, terms)) return TooLate.selector;
        if (work.looker != 0 || !_lookDrawn(key, work, terms)) return NoLookWanted.selector;
        work.looker = seat;
        emit VerdictConfirmed(poolId, node, key, msg.sender, look.reason, look.auditHash);
        return 0;
    }

    /// @dev Makes work final if its period is over. If no validator decided a dispute of a verdict of forged work, the
    /// work counts as rejected, so there is no penalty.
    function _finalize(bytes32 key, Docket memory docket) private {
        Work storage work = _works[key];
        Status status = work.status;
        if (status != Status.Provisional && status != Status.Disputed) return;
        Terms memory terms = _termsOf(work, docket);
        if (block.timestamp <= _deadline(status, work.since, terms)) return;
        Outcome outcome = work.outcome;
        if (status == Status.Disputed && outcome == Outcome.Forged) outcome = Outcome.Rejected;
        _close(key, work, terms, outcome, 0, Outcome.None);
    }

    /// @dev Makes work final: pays or slashes, and releases what was reserved and locked. This is the only transition
    /// to `Final`, so it happens once for each work item.
    /// @param decider The seat number of the validator whose verdict ended a dispute; zero if none did.
    /// @param decision The outcome in that validator's verdict.
    function _close(
        bytes32 key,
        Work storage work,
        Terms memory terms,
        Outcome outcome,
        uint16 decider,
        Outcome decision
    ) private {
        (uint256 poolId, address node) = (work.poolId, work.node);
        address provider = registry.payeeOf(node);
        uint128 reward = outcome == Outcome.Accepted ? _product(terms.pricePerUnit, work.units) : 0;
        uint128 fees = terms.verdictFee == 0 ? 0 : _payFees(key, work, terms.verdictFee, outcome, decider, decision);
        work.status = Status.Final;
        work.outcome = outcome;
        work.since = uint40(block.timestamp);
        uint128 penalty = _product(terms.penaltyPerUnit, work.maxUnits);
        uint128 slashed;
        stakeManager.unlockWork(provider, penalty);
        if (reward != 0) _accrue(poolId, provider, reward);
        pools.settle(poolId, _reserved(work, terms), reward + fees);
        if (outcome == Outcome.Forged) {
            slashed = _slash(poolId, provider, penalty);
            pools.expel(poolId, node, provider);
        }
        emit WorkFinal(poolId, node, key, outcome, reward, slashed);
    }

    /// @dev Pays a fee to each validator whose verdict agrees with the final outcome: the one that gave the first
    /// verdict, the one that confirmed it, and those that decided a dispute. A validator whose dispute overturned the
    /// first verdict gets a fee, too. If no validator decided the dispute, the first two are paid in any case. Returns
    /// the total, at most `MAX_FEES` fees.
    function _payFees(
        bytes32 key,
        Work storage work,
        uint128 fee,
        Outcome outcome,
        uint16 decider,
        Outcome decision
    ) private returns (uint128 total) {
        uint256 poolId = work.poolId;
        if (outcome == work.outcome || decider == 0) {
            total = _payFee(poolId, work.judge, fee) + _payFee(poolId, work.looker, fee);
        } else {
            total = _payFee(poolId, pools.seatNumberOf(poolId, _disputes[key].disputer), fee);
        }
        if (work.opinion == outcome) total += _payFee(poolId, work.juror, fee);
        if (decision == outcome) total += _payFee(poolId, decider, fee);
    }

    function _payFee(uint256 poolId, uint16 seat, uint128 fee) private returns (uint128) {
        if (seat == 0) return 0;
        _accrue(poolId, pools.validatorAt(poolId, seat), fee);
        return fee;
    }

    function _disputant(
        bytes32 key,
        Work storage work,
        bytes32 evidenceHash,
        uint256 deadline,
        bytes calldata signature
    ) private view returns (address) {
        address node = work.node;
        bool accepted = work.outcome == Outcome.Accepted;
        if (signature.length != 0) {
            if (block.timestamp > deadline) revert SignatureExpired(deadline);
            if (_disputeSigner(key, evidenceHash, deadline, signature) != node) revert NodeNotWilling(node);
            if (accepted) revert NotDisputant(key, node);
            return node;
        }
        if (!accepted && (msg.sender == node || msg.sender == registry.payeeOf(node))) return msg.sender;
        uint16 seat = pools.seatNumberOf(work.poolId, msg.sender);
        if (seat == 0 || seat == work.judge) revert NotDisputant(key, msg.sender);
        return msg.sender;
    }

    /// @dev Records the seed that determines the order of a dispute's validators. Returns whether there is one. If the
    /// block hash is too old to be read, the dispute will use the hash of the block after the current one instead.
    function _draw(Dispute storage entry) private returns (bool) {
        if (entry.seed != 0) return true;
        uint40 drawnBy = entry.blockNumber;
        if (block.number <= uint256(drawnBy) + 1) return false;
        uint56 seed = _seedOf(drawnBy);
        if (seed == 0) entry.blockNumber = uint40(block.number);
        else entry.seed = seed;
        return seed != 0;
    }

    /// @dev Returns 56 bits of the hash of the block after `blockNumber`. Returns zero if the block does not exist yet,
    /// or is too old for its hash to be read.
    function _seedOf(uint40 blockNumber) private view returns (uint56) {
        bytes32 hash = blockhash(uint256(blockNumber) + 1);
        return hash == 0 ? 0 : uint56(uint256(hash)) | 1;
    }

    /// @dev Returns whether a validator is eligible to decide a dispute, the Unix time in seconds of its turn, and the
    /// number of the pool's validators. With n eligible validators the dispute period is divided into n + 1 equal
    /// parts. A turn begins with each part but the last, so the last validator in the order has two parts.
    function _turn(bytes32 key, Work storage work, Dispute memory entry, address validator, uint256 period)
        private
        view
        returns (bool found, uint256 opensAt, uint256 validators)
    {
        uint256 poolId = work.poolId;
        address[] memory all = pools.validatorsOf(poolId);
        validators = all.length;
        address provider = registry.payeeOf(work.node);
        address first = _validatorAt(poolId, work.judge);
        address looker = _validatorAt(poolId, work.looker);
        address juror = _validatorAt(poolId, work.juror);
        uint256 weight = uint256(keccak256(abi.encode(key, entry.seed, validator)));
        uint256 rank;
        uint256 eligible;
        for (uint256 i; i < validators; ++i) {
            address each = all[i];
            if (
                each == first || each == looker || each == juror || each == entry.disputer || each == work.node
                    || each == provider
            ) continue;
            ++eligible;
            if (each == validator) found = true;
            else if (uint256(keccak256(abi.encode(key, entry.seed, each))) < weight) ++rank;
        }
        opensAt = work.since + rank * (period / (eligible + 1));
    }

    /// @dev Returns whether the hash of the block after the first verdict selects this work for a paid second look.
    function _lookDrawn(bytes32 key, Work storage work, Terms memory terms) private view returns (bool) {
        bytes32 hash = blockhash(uint256(work.judgedBlock) + 1);
        return hash != 0 && uint256(keccak256(abi.encode(key, hash))) % 10_000 < terms.lookBps;
    }

    /// @dev Returns the median of three outcomes, in the order accepted, rejected, forged. If two outcomes are equal,
    /// the median is equal to these.
    function _median(Outcome a, Outcome b, Outcome c) private pure returns (Outcome) {
        (Outcome low, Outcome high) = a < b ? (a, b) : (b, a);
        return c < low ? low : c > high ? high : c;
    }

    function _seatOf(uint256 poolId, Docket memory docket) private view returns (uint16) {
        if (docket.seatPool != poolId) {
            docket.seatPool = poolId;
            docket.seat = pools.seatNumberOf(poolId, msg.sender);
        }
        return docket.seat;
    }

    function _validatorAt(uint256 poolId, uint16 seat) private view returns (address) {
        return seat == 0 ? address(0) : pools.validatorAt(poolId, seat);
    }

    function _termsOf(Work storage work, Docket memory docket) private view returns (Terms memory) {
        (uint256 poolId, uint256 version) = (work.poolId, work.terms);
        if (docket.termsPool != poolId || docket.termsVersion != version) {
            docket.termsPool = poolId;
            docket.termsVersion = version;
            docket.terms = _termsOf(work);
        }
        return docket.terms;
    }

    function _termsOf(Work storage work) private view returns (Terms memory) {
        return pools.termsAt(work.poolId, work.terms);
    }

    /// @dev Returns the end of the period in which work has this status, Unix time in seconds; zero if there is none.
    function _deadline(Status status, uint256 since, Terms memory terms) private pure returns (uint64) {
        if (status == Status.Submitted) return uint64(since + terms.judgePeriod);
        if (status == Status.Provisional) return uint64(since + terms.challengePeriod);
        if (status == Status.Disputed) return uint64(since + terms.disputePeriod);
        return 0;
    }

    /// @dev Returns the escrow that a work item reserves: its reward and `MAX_FEES` fees.
    function _reserved(Work storage work, Terms memory terms) private view returns (uint128) {
        return _product(terms.pricePerUnit, work.units) + _product(terms.verdictFee, MAX_FEES);
    }

    /// @dev Multiplies an amount by a number of units. It can't overflow, because ComputePools refuses submissions
    /// whose amounts exceed 128 bits.
    function _product(uint128 perUnit, uint256 units) private pure returns (uint128) {
        return uint128(perUnit * units);
    }

    function _emitSubmitted(bytes32 key, Lease calldata lease, bytes32 sha256Hash, uint64 units) private {
        emit WorkSubmitted(
            lease.poolId,
            lease.node,
            key,
            lease.run,
            lease.step,
            lease.index,
            lease.version,
            lease.digest,
            lease.beaconBlock,
            lease.salt,
            lease.groups,
            lease.maxUnits,
            sha256Hash,
            units
        );
    }

    function _keyOf(Lease calldata lease) private pure returns (bytes32) {
        return workKey(lease.poolId, lease.run, lease.node, lease.step, lease.index);
    }

    function _requireBatch(uint256 length) private pure {
        if (length > MAX_BATCH) revert BatchTooLong(length, MAX_BATCH);
    }
}
