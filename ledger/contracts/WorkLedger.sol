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
/// @notice Work is submitted under a lease, judged, disputed at most once, and becomes final: paid, unpaid or slashed.
/// A missed deadline of validators never costs the node stake: without a first verdict the work expires; without a
/// decision of its dispute there is no penalty.
///
/// The pool's other validators decide a dispute, in an order that is unpredictable: by a hash of the key, of the block
/// after the dispute, and of the validator. The dispute period is divided into turns; in its turn a validator may
/// decide in addition to those before it. In a pool with `CONFIRMED_FROM` validators or more, a validator that
/// contradicts the first verdict needs a second one: the outcome is then the median of the three verdicts.
/// @dev A step may be taken up to and including the second of its deadline; what follows a deadline needs a later
/// second. A batch skips refused items and emits an event with the error.
contract WorkLedger is WorkSignatures, Rewards {
    /// @dev Cache of ComputePools reads during a batch, whose items mostly have the same pool and terms version.
    struct Docket {
        uint256 termsPool;
        uint256 termsVersion;
        Terms terms;
        uint256 seatPool;
        uint16 seat;
    }

    /// @notice The most items in a batch.
    uint256 public constant MAX_BATCH = 256;
    /// @notice With this many validators or more, overturning a verdict takes two of them.
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
    /// @notice A validator gave a verdict; a decisive one ended a dispute and made the work final.
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
    /// @notice A validator contradicted the first verdict in a dispute; a second validator then decides.
    event VerdictContradicted(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        address validator,
        Outcome outcome,
        uint16 reason,
        bytes32 auditHash
    );
    /// @notice Another validator took a second look at the work and agrees with the first verdict.
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
    /// @notice A rejection that the node or its provider disputed was upheld; `taken` of the provider's stake was
    /// slashed.
    event DisputeLost(uint256 indexed poolId, address indexed node, bytes32 indexed key, uint256 taken);
    /// @notice Work is final: `paid` accrued to its provider; `slashed` of its stake was slashed for forged work.
    event WorkFinal(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        Outcome outcome,
        uint256 paid,
        uint256 slashed
    );
    /// @notice No validator judged the work in time: it is neither paid nor slashed.
    event WorkExpired(uint256 indexed poolId, address indexed node, bytes32 indexed key);

    /// @notice The batch has `length` items; at most `limit` are allowed.
    error BatchTooLong(uint256 length, uint256 limit);
    /// @notice The lease expired at `expiry`.
    error LeaseExpired(uint64 expiry);
    /// @notice Work must be 1 to `maxUnits` units.
    error UnitsOutOfRange(uint64 units, uint64 maxUnits);
    /// @notice Work was submitted under this key already.
    error WorkExists(bytes32 key);
    /// @notice The node is not the caller, and did not sign.
    error NodeNotWilling(address node);
    /// @notice There is no such work, or its status does not allow this.
    error WrongStatus(bytes32 key, Status status);
    /// @notice The deadline of this step has passed.
    error TooLate(bytes32 key, uint256 deadline);
    /// @notice The caller is not a validator of the work's pool.
    error NotValidator(uint256 poolId, address caller);
    /// @notice The caller is the node or its provider, or has judged, confirmed or disputed this work before.
    error ConflictOfInterest(bytes32 key, address caller);
    /// @notice The validator's turn to decide the dispute has not begun, or the block whose hash determines the order
    /// does not exist yet. `turnOf` returns when the turn begins.
    error NotYourTurn(bytes32 key, address caller);
    /// @notice The verdict names another file or number of units than the submission.
    error OtherSubmission(bytes32 key, bytes32 sha256Hash, uint64 units);
    /// @notice A verdict must accept, reject, or call the work forged.
    error NoOutcome(bytes32 key);
    /// @notice The pool does not pay for a second look at this work, or another validator has confirmed it already.
    error NoLookWanted(bytes32 key);
    /// @notice A confirmation must have the outcome of the first verdict; to disagree, dispute the verdict.
    error OutcomeDiffers(bytes32 key, Outcome outcome);
    /// @notice Only a validator other than the judge may dispute; the node or its provider too, unless it was accepted.
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
    /// may call this with the node's signature. The reward is for the submitted units; the penalty is for all units of
    /// the lease, so that claiming few of them does not make forging cheap.
    /// @param lease The lease.
    /// @param leaseSignature The orchestrator's EIP-712 signature of the `Lease`.
    /// @param sha256Hash SHA-256 of the file.
    /// @param units Work units in the file, 1 to the lease's `maxUnits`.
    /// @param nodeSignature The node's EIP-712 signature of the `Work`; may be empty if the node calls.
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
        work.poolId = uint32(lease.poolId); // ComputePools numbers pools within 32 bits.
        work.terms = terms;
        work.status = Status.Submitted;
        work.since = uint40(block.timestamp);
        work.units = uint40(units);
        work.maxUnits = uint40(lease.maxUnits);
        work.sha256Hash = sha256Hash;
        _emitSubmitted(key, lease, sha256Hash, units);
        stakeManager.lockWork(provider, penalty);
    }

    /// @notice Submits several work items; a refused one does not affect the others.
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

    /// @notice Records verdicts: first ones on submitted work, decisive ones on disputed work. Each names the
    /// submission that was judged, because a reorganisation may have put another one under its key. A refused item does
    /// not affect the others. Only validators of the work's pool may call this.
    /// @param verdicts At most `MAX_BATCH`.
    function judge(Verdict[] calldata verdicts) external {
        _requireBatch(verdicts.length);
        Docket memory docket;
        for (uint256 i; i < verdicts.length; ++i) {
            bytes4 refusal = _judge(verdicts[i], docket);
            if (refusal != 0) emit VerdictRefused(verdicts[i].key, msg.sender, refusal);
        }
    }

    /// @notice Records second looks that agree with provisional verdicts. The pool pays for one second look at a share
    /// of the work, drawn by the hash of the block after the first verdict, so that the judge can't know it beforehand.
    /// A second look must come within 256 blocks, after which the EVM can't read that hash, and within the challenge
    /// period. A refused item does not affect the others. Only validators of the work's pool other than its judge may
    /// call this.
    /// @param looks At most `MAX_BATCH`.
    function confirm(Confirmation[] calldata looks) external {
        _requireBatch(looks.length);
        Docket memory docket;
        for (uint256 i; i < looks.length; ++i) {
            bytes4 refusal = _confirm(looks[i], docket);
            if (refusal != 0) emit VerdictRefused(looks[i].key, msg.sender, refusal);
        }
    }

    /// @notice Disputes a provisional verdict, once, within the challenge period. Validators other than the judge may;
    /// the node and its provider too, unless the work was accepted, because a dispute makes validators recompute all of
    /// it. Any account may call this with the node's signature. If a rejection that the node's side disputed is upheld,
    /// its provider loses `LOST_DISPUTE_BPS` of the work's penalty.
    /// @param key The work.
    /// @param evidenceHash Hash of the disputant's evidence.
    /// @param deadline Unix time in seconds until which the signature is valid; not used without one.
    /// @param signature The node's EIP-712 signature of the `Dispute`; empty if the disputant calls.
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

    /// @notice Records the block hashes that determine the order of validators in disputes, while the EVM can still
    /// read them. `judge` does it too; this is for verdicts that take longer than 256 blocks. Skips keys without an
    /// open dispute. Any account may call this.
    /// @param keys At most `MAX_BATCH`.
    function drawJuries(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        for (uint256 i; i < keys.length; ++i) {
            if (_works[keys[i]].status == Status.Disputed) _draw(_disputes[keys[i]]);
        }
    }

    /// @notice Makes work final whose challenge or dispute period is over. Skips keys that are not due. Any account may
    /// call this.
    /// @param keys At most `MAX_BATCH`.
    function finalize(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        Docket memory docket;
        for (uint256 i; i < keys.length; ++i) _finalize(keys[i], docket);
    }

    /// @notice Expires work that no validator judged in time: it is neither paid nor slashed. Skips keys that are not
    /// due. Any account may call this.
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

    /// @notice Returns a work record; status `None` if nothing was submitted under the key.
    /// @param key The work.
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

    /// @notice Returns from when on a validator may decide a dispute, Unix time in seconds; zero if it may not, or if
    /// the block hash that determines the order can't be read (yet).
    /// @param key The work.
    /// @param validator The validator.
    function turnOf(bytes32 key, address validator) external view returns (uint256) {
        Work storage work = _works[key];
        Dispute memory entry = _disputes[key];
        if (work.status != Status.Disputed) return 0;
        if (entry.seed == 0) entry.seed = _seedOf(entry.blockNumber);
        (bool found, uint256 opensAt,) = _turn(key, work, entry, validator, _termsOf(work).disputePeriod);
        return found && entry.seed != 0 ? opensAt : 0;
    }

    /// @notice Returns whether the pool pays for a second look at this provisional work, and none was recorded yet.
    /// False also before the block exists whose hash draws it, and when that hash is too old to be read.
    /// @param key The work.
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

    /// @dev Slashes for a lost dispute, if the node or its provider opened it. The stake that the work had locked
    /// covers it.
    function _chargeDispute(bytes32 key, Work storage work, Terms memory terms, uint256 poolId, address node) private {
        address provider = registry.payeeOf(node);
        address disputer = _disputes[key].disputer;
        if (disputer != node && disputer != provider) return;
        uint128 penalty = _product(terms.penaltyPerUnit, work.maxUnits);
        uint128 part = uint128(uint256(penalty) * LOST_DISPUTE_BPS / 10_000);
        emit DisputeLost(poolId, node, key, _slash(poolId, provider, part));
    }

    /// @dev Slashes stake: to the domain's reserve, or burned if it has none. Returns the amount.
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

    /// @dev If no validator decided a dispute, a verdict of forged work becomes a rejection, without a penalty.
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

    /// @dev The only transition to `Final`: pays, releases or slashes, once.
    /// @param decider The seat of the validator whose verdict ended a dispute; zero if there is none.
    /// @param decision The outcome that this validator voted for.
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

    /// @dev Pays every validator that agrees with the final outcome: the judge, the confirming validator, and those
    /// that decided a dispute; also a validator whose dispute overturned the first verdict. If no validator decided the
    /// dispute, the judge and the confirming validator are paid. Returns the total, at most `MAX_FEES` fees.
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

    /// @dev Records the seed for the order of a dispute's validators; false while there is none. If the hash is too old
    /// to be read, the hash of the block after the current one will be used instead.
    function _draw(Dispute storage entry) private returns (bool) {
        if (entry.seed != 0) return true;
        uint40 drawnBy = entry.blockNumber;
        if (block.number <= uint256(drawnBy) + 1) return false;
        uint56 seed = _seedOf(drawnBy);
        if (seed == 0) entry.blockNumber = uint40(block.number);
        else entry.seed = seed;
        return seed != 0;
    }

    /// @dev Returns 56 bits of the hash of the block after `blockNumber`; zero if it can't be read (yet, or any more).
    function _seedOf(uint40 blockNumber) private view returns (uint56) {
        bytes32 hash = blockhash(uint256(blockNumber) + 1);
        return hash == 0 ? 0 : uint56(uint256(hash)) | 1;
    }

    /// @dev Returns whether a validator may decide a dispute, from when on, and how many validators the pool has. With
    /// n eligible validators the dispute period has n + 1 parts of equal length: the last validator in order has two.
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

    /// @dev Returns whether the hash of the block after the first verdict draws this work for a paid second look.
    function _lookDrawn(bytes32 key, Work storage work, Terms memory terms) private view returns (bool) {
        bytes32 hash = blockhash(uint256(work.judgedBlock) + 1);
        return hash != 0 && uint256(keccak256(abi.encode(key, hash))) % 10_000 < terms.lookBps;
    }

    /// @dev Returns the median of three outcomes, from accepted to forged; if two of them agree, it is theirs.
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

    /// @dev Returns the deadline of the next step, Unix time in seconds; zero if there is none.
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

    /// @dev Can't overflow: ComputePools refuses submissions whose amounts would.
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
