// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {MusterToken} from "./MusterToken.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";

/// @title Stake of providers
/// @notice Holds the stake of providers and their unbonding queues, and slashes stake when WorkLedger calls it.
/// @dev Transfers can't reenter this contract, because `MusterToken` makes no callbacks. Only the two contracts that
/// are set at deployment can lock or slash stake, and no others can be added.
contract StakeManager is IStakeManager {
    using SafeCast for uint256;

    /// @notice The stake of a provider, in the token's smallest unit.
    /// @param active Stake that can be locked, slashed and unbonded.
    /// @param unbonding Stake in the unbonding queue, slashable until it is withdrawn.
    /// @param membershipLock The part of `active` that memberships lock.
    /// @param workLock The part of `active` that open work locks.
    struct Stake {
        uint128 active;
        uint128 unbonding;
        uint128 membershipLock;
        uint128 workLock;
    }

    /// @notice One entry of the unbonding queue.
    /// @param amount The amount, less what was slashed from it; zero if the entry was cancelled or withdrawn.
    /// @param maturesAt Unix time in seconds from which the amount can be withdrawn.
    struct Unbond {
        uint128 amount;
        uint64 maturesAt;
    }

    /// @dev The ids of the open entries are `head` to `tail - 1`. Entries mature in the order of their ids.
    struct Queue {
        uint128 head;
        uint128 tail;
    }

    /// @notice The maximum number of open entries in a provider's queue, which limits the gas of slashes and
    /// withdrawals.
    uint256 public constant MAX_UNBONDS = 32;

    /// @notice The token of stake.
    MusterToken public immutable token;
    /// @notice The only contract that locks stake for memberships.
    address public immutable pools;
    /// @notice The only contract that locks stake for work, and that slashes.
    address public immutable workLedger;
    /// @inheritdoc IStakeManager
    uint64 public immutable unbondingPeriod;

    mapping(address provider => Stake) private _stakes;
    mapping(address provider => Queue) private _queues;
    mapping(address provider => mapping(uint256 id => Unbond)) private _unbonds;

    /// @notice An account added to a provider's stake.
    event Staked(address indexed provider, address indexed from, uint256 amount);
    /// @notice A provider began to unbond stake, which it can withdraw from `maturesAt` on.
    event UnbondStarted(address indexed provider, uint256 indexed id, uint256 amount, uint256 maturesAt);
    /// @notice A provider cancelled an entry of its unbonding queue.
    event UnbondCancelled(address indexed provider, uint256 indexed id, uint256 amount);
    /// @notice A provider withdrew matured stake.
    event Withdrawn(address indexed provider, address indexed to, uint256 amount);
    /// @notice Of the `asked` amount, `taken` was slashed from a provider's stake; it was burned if `recipient` is
    /// zero.
    event Slashed(address indexed provider, address indexed recipient, uint256 asked, uint256 taken);
    /// @notice A membership of the provider began or ended; the event has the amounts that are locked now.
    event LocksChanged(address indexed provider, uint256 membershipLock, uint256 workLock);

    /// @notice Amounts must be above zero.
    error NothingAsked();
    /// @notice The call needs `asked` unlocked stake, but the provider has only `free`.
    error StakeTooLow(address provider, uint256 free, uint256 asked);
    /// @notice The provider's unbonding queue has `MAX_UNBONDS` open entries; withdraw or cancel some first.
    error TooManyUnbonds(address provider);
    /// @notice The provider's unbonding queue has no open entry with this id.
    error NoSuchUnbond(address provider, uint256 id);
    /// @notice No entry of the provider's unbonding queue can be withdrawn yet.
    error NothingMatured(address provider);
    /// @notice Only a contract that was set at deployment may call this.
    error NotAllowed(address caller);
    /// @notice The unbonding period must be above zero.
    error NoUnbondingPeriod();
    /// @notice The zero address can't receive stake.
    error NoRecipient();

    modifier only(address caller) {
        if (msg.sender != caller) revert NotAllowed(msg.sender);
        _;
    }

    /// @notice Sets the contracts that may lock and slash stake, which can't be changed later.
    /// @param token_ The token of stake.
    /// @param pools_ The ComputePools contract.
    /// @param workLedger_ The WorkLedger contract.
    /// @param unbondingPeriod_ Seconds that stake stays slashable after its owner began to unbond it.
    constructor(MusterToken token_, address pools_, address workLedger_, uint64 unbondingPeriod_) {
        if (unbondingPeriod_ == 0) revert NoUnbondingPeriod();
        token = token_;
        pools = pools_;
        workLedger = workLedger_;
        unbondingPeriod = unbondingPeriod_;
    }

    /// @notice Adds to the caller's stake. The caller must have approved the amount for this contract (ERC-20).
    /// @param amount Amount in the token's smallest unit.
    function stake(uint256 amount) external {
        _stake(msg.sender, amount);
    }

    /// @notice Adds to the caller's stake with a permit (EIP-2612) instead of an approval. The call works, too, if
    /// another account has already submitted the permit.
    /// @param amount Amount in the token's smallest unit.
    /// @param deadline Unix time in seconds until which the permit is valid.
    /// @param v Recovery id of the permit's signature.
    /// @param r First half of the permit's signature.
    /// @param s Second half of the permit's signature.
    function stakeWithPermit(uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external {
        try token.permit(msg.sender, address(this), amount, deadline, v, r, s) {} catch {}
        _stake(msg.sender, amount);
    }

    /// @notice Adds to another provider's stake from the caller's tokens.
    /// @param provider The provider.
    /// @param amount Amount in the token's smallest unit.
    function stakeFor(address provider, uint256 amount) external {
        _stake(provider, amount);
    }

    /// @notice Begins to unbond unlocked stake; it can be withdrawn after `unbondingPeriod`.
    /// @param amount Amount in the token's smallest unit.
    /// @return id The id of the entry in the caller's queue; the id of a cancelled entry may be used again.
    function beginUnbond(uint128 amount) external returns (uint256 id) {
        if (amount == 0) revert NothingAsked();
        Stake storage account = _stakes[msg.sender];
        _requireFree(msg.sender, account, amount);
        Queue storage queue = _queues[msg.sender];
        id = queue.tail;
        if (id - queue.head >= MAX_UNBONDS) revert TooManyUnbonds(msg.sender);
        uint64 maturesAt = uint64(block.timestamp) + unbondingPeriod;
        queue.tail = uint128(id + 1);
        account.active -= amount;
        account.unbonding += amount;
        _unbonds[msg.sender][id] = Unbond({amount: amount, maturesAt: maturesAt});
        emit UnbondStarted(msg.sender, id, amount, maturesAt);
    }

    /// @notice Cancels an open entry of the caller's queue, matured or not; its amount becomes active stake again.
    /// @param id The entry's id.
    function cancelUnbond(uint256 id) external {
        uint128 amount = _unbonds[msg.sender][id].amount;
        if (amount == 0) revert NoSuchUnbond(msg.sender, id);
        delete _unbonds[msg.sender][id];
        Stake storage account = _stakes[msg.sender];
        account.unbonding -= amount;
        account.active += amount;
        _trim(msg.sender);
        emit UnbondCancelled(msg.sender, id, amount);
    }

    /// @notice Sends the caller's matured stake to the caller.
    /// @return amount The amount sent.
    function withdraw() external returns (uint256 amount) {
        return _withdraw(msg.sender);
    }

    /// @notice Sends the caller's matured stake to `to`.
    /// @param to The recipient.
    /// @return amount The amount sent.
    function withdraw(address to) external returns (uint256 amount) {
        if (to == address(0)) revert NoRecipient();
        return _withdraw(to);
    }

    /// @inheritdoc IStakeManager
    function lockMembership(address provider, uint128 amount) external only(pools) {
        Stake storage account = _stakes[provider];
        _requireFree(provider, account, amount);
        account.membershipLock += amount;
        emit LocksChanged(provider, account.membershipLock, account.workLock);
    }

    /// @inheritdoc IStakeManager
    function unlockMembership(address provider, uint128 amount) external only(pools) {
        Stake storage account = _stakes[provider];
        account.membershipLock -= amount;
        emit LocksChanged(provider, account.membershipLock, account.workLock);
    }

    /// @inheritdoc IStakeManager
    function lockWork(address provider, uint128 amount) external only(workLedger) {
        Stake storage account = _stakes[provider];
        _requireFree(provider, account, amount);
        account.workLock += amount;
    }

    /// @inheritdoc IStakeManager
    function unlockWork(address provider, uint128 amount) external only(workLedger) {
        _stakes[provider].workLock -= amount;
    }

    /// @inheritdoc IStakeManager
    function slash(address provider, uint128 amount, address recipient)
        external
        only(workLedger)
        returns (uint128 taken)
    {
        Stake storage account = _stakes[provider];
        taken = amount < account.active ? amount : account.active;
        account.active -= taken;
        if (taken < amount && account.unbonding != 0) taken += _slashQueue(provider, account, amount - taken);
        emit Slashed(provider, recipient, amount, taken);
        if (taken == 0) return 0;
        if (recipient == address(0)) token.burn(taken);
        else token.transfer(recipient, taken);
    }

    /// @notice Returns a provider's stake and its locks.
    /// @param provider The provider.
    function stakeOf(address provider) external view returns (Stake memory) {
        return _stakes[provider];
    }

    /// @notice Returns the open entries of a provider's unbonding queue, oldest first. Cancelled entries between them
    /// have amount zero.
    /// @param provider The provider.
    /// @return firstId The id of the first entry; the others have the ids that follow it.
    /// @return entries At most `MAX_UNBONDS` entries.
    function unbondsOf(address provider) external view returns (uint256 firstId, Unbond[] memory entries) {
        Queue memory queue = _queues[provider];
        firstId = queue.head;
        entries = new Unbond[](queue.tail - queue.head);
        for (uint256 i; i < entries.length; ++i) entries[i] = _unbonds[provider][firstId + i];
    }

    function _stake(address provider, uint256 amount) private {
        if (amount == 0) revert NothingAsked();
        if (provider == address(0)) revert NoRecipient();
        _stakes[provider].active += amount.toUint128();
        token.transferFrom(msg.sender, address(this), amount);
        emit Staked(provider, msg.sender, amount);
    }

    function _withdraw(address to) private returns (uint256 amount) {
        Queue storage queue = _queues[msg.sender];
        uint256 id = queue.head;
        for (uint256 tail = queue.tail; id < tail; ++id) {
            Unbond memory entry = _unbonds[msg.sender][id];
            if (entry.amount != 0 && block.timestamp < entry.maturesAt) break;
            amount += entry.amount;
            delete _unbonds[msg.sender][id];
        }
        if (amount == 0) revert NothingMatured(msg.sender);
        queue.head = uint128(id);
        _stakes[msg.sender].unbonding -= uint128(amount);
        emit Withdrawn(msg.sender, to, amount);
        token.transfer(to, amount);
    }

    /// @dev Slashes up to `amount` from the queue. It takes the oldest entries first, because these can be withdrawn
    /// soonest.
    function _slashQueue(address provider, Stake storage account, uint128 amount) private returns (uint128 taken) {
        Queue storage queue = _queues[provider];
        for (uint256 id = queue.head; id < queue.tail && taken < amount; ++id) {
            Unbond storage entry = _unbonds[provider][id];
            uint128 part = amount - taken < entry.amount ? amount - taken : entry.amount;
            entry.amount -= part;
            taken += part;
        }
        account.unbonding -= taken;
        _trim(provider);
    }

    /// @dev Removes empty entries at both ends of the queue, so that they don't count towards `MAX_UNBONDS`.
    function _trim(address provider) private {
        Queue storage queue = _queues[provider];
        (uint256 head, uint256 tail) = (queue.head, queue.tail);
        while (head < tail && _unbonds[provider][head].amount == 0) delete _unbonds[provider][head++];
        while (head < tail && _unbonds[provider][tail - 1].amount == 0) delete _unbonds[provider][--tail];
        (queue.head, queue.tail) = (uint128(head), uint128(tail));
    }

    function _requireFree(address provider, Stake storage account, uint128 asked) private view {
        uint256 bound = uint256(account.membershipLock) + account.workLock;
        uint256 active = account.active;
        uint256 free = active > bound ? active - bound : 0;
        if (asked > free) revert StakeTooLow(provider, free, asked);
    }
}
