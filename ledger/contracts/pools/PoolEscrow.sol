// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {MusterToken} from "../MusterToken.sol";
import {IComputePools} from "../interfaces/IComputePools.sol";
import {PoolBook} from "./PoolBook.sol";

/// @title Escrow of pools
/// @notice Any account can fund a pool. Open work reserves its reward and fees. The owner can withdraw the rest, but
/// must announce this one notice period beforehand, so that work under leases signed before is still paid.
/// @dev Transfers can't reenter this contract, because `MusterToken` makes no callbacks.
abstract contract PoolEscrow is PoolBook {
    using SafeCast for uint256;

    /// @notice A pool's escrow, in the token's smallest unit.
    /// @param balance The whole balance, reserved or not.
    /// @param reserved The part of the balance that is reserved for rewards and fees of open work.
    struct Escrow {
        uint128 balance;
        uint128 reserved;
    }

    /// @notice A withdrawal that the owner announced.
    /// @param amount The amount that can still be withdrawn, in the token's smallest unit; zero if none was announced.
    /// @param readyAt Unix time in seconds from which the owner can withdraw.
    /// @param lapsesAt Unix time in seconds after which the owner can't withdraw any more. Without this limit an owner
    /// could announce a withdrawal once, and then withdraw without notice at any later time.
    struct Withdrawal {
        uint128 amount;
        uint64 readyAt;
        uint64 lapsesAt;
    }

    /// @notice The token of escrow.
    MusterToken public immutable token;

    mapping(uint256 poolId => Escrow) private _escrows;
    mapping(uint256 poolId => Withdrawal) private _withdrawals;

    /// @notice An account added to a pool's escrow.
    event EscrowFunded(uint256 indexed poolId, address indexed from, uint256 amount);
    /// @notice The owner announced a withdrawal of up to `amount` between `readyAt` and `lapsesAt`. An `amount` of zero
    /// cancels an earlier announcement.
    event WithdrawalAnnounced(uint256 indexed poolId, uint256 amount, uint256 readyAt, uint256 lapsesAt);
    /// @notice The owner withdrew escrow that was not reserved.
    event EscrowWithdrawn(uint256 indexed poolId, address indexed to, uint256 amount);

    /// @notice The call needs `asked` escrow that is not reserved, but the pool has only `free`.
    error EscrowTooLow(uint256 poolId, uint256 free, uint256 asked);
    /// @notice The withdrawal of `asked` is not within the announced one: up to `announced`, between `readyAt` and
    /// `lapsesAt`.
    error NotAnnounced(uint256 poolId, uint256 asked, uint256 announced, uint256 readyAt, uint256 lapsesAt);
    /// @notice Amounts must be above zero.
    error NothingAsked();

    constructor(MusterToken token_) {
        token = token_;
    }

    /// @notice Adds to a pool's escrow from the caller's tokens. The caller must have approved the amount for this
    /// contract (ERC-20).
    /// @param poolId The pool.
    /// @param amount Amount in the token's smallest unit.
    function fund(uint256 poolId, uint256 amount) external {
        _fund(poolId, amount);
    }

    /// @notice Adds to a pool's escrow with a permit (EIP-2612) instead of an approval. The call works, too, if another
    /// account has already submitted the permit.
    /// @param poolId The pool.
    /// @param amount Amount in the token's smallest unit.
    /// @param deadline Unix time in seconds until which the permit is valid.
    /// @param v Recovery id of the permit's signature.
    /// @param r First half of the permit's signature.
    /// @param s Second half of the permit's signature.
    function fundWithPermit(uint256 poolId, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s)
        external
    {
        try token.permit(msg.sender, address(this), amount, deadline, v, r, s) {} catch {}
        _fund(poolId, amount);
    }

    /// @notice Announces a withdrawal, which replaces an announcement made before. The owner can withdraw after the
    /// present notice period has passed, and until it has passed a second time. Only the owner may call this.
    /// @param poolId The pool.
    /// @param amount The maximum amount to withdraw, in the token's smallest unit; zero cancels the announcement.
    function announceWithdrawal(uint256 poolId, uint128 amount) external onlyOwner(poolId) {
        uint64 readyAt = _noticeEnd(poolId);
        uint64 lapsesAt = readyAt + (readyAt - uint64(block.timestamp));
        _withdrawals[poolId] = Withdrawal({amount: amount, readyAt: readyAt, lapsesAt: lapsesAt});
        emit WithdrawalAnnounced(poolId, amount, readyAt, lapsesAt);
    }

    /// @notice Withdraws escrow that is not reserved, from a pool in any status. The withdrawal must have been
    /// announced, unless the pool is pending. Only the owner may call this.
    /// @param poolId The pool.
    /// @param amount Amount in the token's smallest unit.
    /// @param to The recipient.
    function withdrawEscrow(uint256 poolId, uint128 amount, address to) external onlyOwner(poolId) {
        if (amount == 0) revert NothingAsked();
        if (_pools[poolId].status != Status.Pending) {
            Withdrawal storage announced = _withdrawals[poolId];
            if (
                amount > announced.amount || block.timestamp < announced.readyAt
                    || block.timestamp > announced.lapsesAt
            ) revert NotAnnounced(poolId, amount, announced.amount, announced.readyAt, announced.lapsesAt);
            announced.amount -= amount;
        }
        _requireFree(poolId, amount);
        _escrows[poolId].balance -= amount;
        emit EscrowWithdrawn(poolId, to, amount);
        token.transfer(to, amount);
    }

    /// @inheritdoc IComputePools
    function settle(uint256 poolId, uint128 reserved, uint128 paid) external onlyWorkLedger {
        Escrow storage escrow = _escrows[poolId];
        escrow.reserved -= reserved;
        if (paid == 0) return;
        escrow.balance -= paid;
        token.transfer(msg.sender, paid);
    }

    /// @notice Returns the withdrawal that the owner announced; its amount is zero if there is none.
    /// @param poolId The pool.
    function withdrawalOf(uint256 poolId) external view returns (Withdrawal memory) {
        return _withdrawals[poolId];
    }

    /// @notice Returns a pool's escrow.
    /// @param poolId The pool.
    function escrowOf(uint256 poolId) external view returns (Escrow memory) {
        return _escrows[poolId];
    }

    function _reserve(uint256 poolId, uint128 amount) internal {
        _requireFree(poolId, amount);
        _escrows[poolId].reserved += amount;
    }

    function _fund(uint256 poolId, uint256 amount) private {
        _requireExists(poolId);
        if (amount == 0) revert NothingAsked();
        _escrows[poolId].balance += amount.toUint128();
        token.transferFrom(msg.sender, address(this), amount);
        emit EscrowFunded(poolId, msg.sender, amount);
    }

    function _requireFree(uint256 poolId, uint128 asked) private view {
        Escrow storage escrow = _escrows[poolId];
        uint256 free = escrow.balance - escrow.reserved;
        if (asked > free) revert EscrowTooLow(poolId, free, asked);
    }
}
