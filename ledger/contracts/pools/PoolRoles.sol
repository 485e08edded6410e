// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IComputePools} from "../interfaces/IComputePools.sol";
import {PoolBook} from "./PoolBook.sol";

/// @title Roles of a pool
/// @notice Each role has its own key. After a rotation of the key, the previous one stays valid until a given time.
abstract contract PoolRoles is PoolBook {
    /// @notice The roles that have one key at a time. A pool may have several validators, so these are stored
    /// separately.
    enum Role {
        Manager,
        Orchestrator,
        Publisher
    }

    /// @notice The keys of a new pool.
    /// @param manager Evicts and bans nodes, and may read the pool's data.
    /// @param orchestrator Signs invites, leases and responses.
    /// @param publisher Announces checkpoints.
    struct Roles {
        address manager;
        address orchestrator;
        address publisher;
    }

    /// @notice The keys of a role.
    /// @param holder The current key.
    /// @param previous The previous key.
    /// @param previousUntil Unix time in seconds before which the previous key is valid too.
    struct Seat {
        address holder;
        address previous;
        uint64 previousUntil;
    }

    /// @notice A place for one validator. Seats of a pool are numbered from 1. WorkLedger stores the seat number
    /// instead of the validator's address, because the number is shorter.
    /// @param validator The validator's key.
    /// @param until Unix time in seconds before which the validator may give verdicts.
    struct ValidatorSeat {
        address validator;
        uint64 until;
    }

    /// @notice The maximum number of validator seats in a pool.
    uint256 public constant MAX_VALIDATORS = 64;
    /// @notice The longest time that a previous key, or a removed validator, may stay valid.
    uint256 public constant MAX_GRACE = 7 days;

    mapping(uint256 poolId => mapping(Role => Seat)) private _seats;
    // This is a mapping and not an array, because the length check of an array costs each verdict a cold storage read.
    mapping(uint256 poolId => mapping(uint256 number => ValidatorSeat)) private _validatorSeats;
    mapping(uint256 poolId => uint256) private _seatCount;
    mapping(uint256 poolId => mapping(address validator => uint16)) private _seatNumbers;

    /// @notice A role has a new key; the previous one is valid until `previousUntil`.
    event RoleSet(
        uint256 indexed poolId, Role indexed role, address indexed key, address previous, uint256 previousUntil
    );
    /// @notice A validator was added.
    event ValidatorAdded(uint256 indexed poolId, address indexed validator);
    /// @notice A validator was removed; it may give verdicts before `until`.
    event ValidatorRemoved(uint256 indexed poolId, address indexed validator, uint256 until);

    /// @notice The key of a role must not be the zero address.
    error NoKey();
    /// @notice Only the pool's owner or the role's present holder may do this.
    error NotHolder(uint256 poolId, Role role, address caller);
    /// @notice A previous key, or a removed validator, may stay valid until `latest` at most.
    error GraceTooLong(uint256 until, uint256 latest);
    /// @notice The address is not a validator of the pool.
    error NotValidator(uint256 poolId, address who);
    /// @notice All `limit` validator seats are in use. The seat of a removed validator becomes free one unbonding
    /// period after its last possible verdict. After that time no open work can refer to the seat any more.
    error TooManyValidators(uint256 poolId, uint256 limit);
    /// @notice The caller is neither the pool's orchestrator nor its manager.
    error NotOperator(uint256 poolId, address caller);
    /// @notice The lease is not signed by the pool's orchestrator; `signer` is zero if the signature is invalid.
    error NotOrchestrator(uint256 poolId, address signer);
    /// @notice The caller is not the pool's manager.
    error NotManager(uint256 poolId, address caller);

    modifier onlyManager(uint256 poolId) {
        _requireManager(poolId);
        _;
    }

    /// @notice Rotates the manager's key. Only the owner or the present manager may call this.
    /// @param poolId The pool.
    /// @param key The new key.
    /// @param previousUntil Unix time in seconds before which the old key stays valid; a time that has passed ends its
    /// validity at once.
    function setManager(uint256 poolId, address key, uint256 previousUntil) external {
        _rotate(poolId, Role.Manager, key, previousUntil);
    }

    /// @notice Rotates the orchestrator's key. Only the owner or the present orchestrator may call this.
    /// @param poolId The pool.
    /// @param key The new key.
    /// @param previousUntil Unix time in seconds before which the old key stays valid; a time that has passed ends its
    /// validity at once.
    function setOrchestrator(uint256 poolId, address key, uint256 previousUntil) external {
        _rotate(poolId, Role.Orchestrator, key, previousUntil);
    }

    /// @notice Rotates the publisher's key. Only the owner or the present publisher may call this.
    /// @param poolId The pool.
    /// @param key The new key.
    /// @param previousUntil Unix time in seconds before which the old key stays valid; a time that has passed ends its
    /// validity at once.
    function setPublisher(uint256 poolId, address key, uint256 previousUntil) external {
        _rotate(poolId, Role.Publisher, key, previousUntil);
    }

    /// @notice Adds a validator. Only the owner may call this.
    /// @param poolId The pool.
    /// @param validator The address.
    function addValidator(uint256 poolId, address validator) external onlyOwner(poolId) {
        if (validator == address(0)) revert NoKey();
        uint256 number = _seatNumbers[poolId][validator];
        if (number == 0) number = _freeSeat(poolId, validator);
        _validatorSeats[poolId][number].until = type(uint64).max;
        emit ValidatorAdded(poolId, validator);
    }

    /// @notice Removes a validator. Only the owner may call this.
    /// @param poolId The pool.
    /// @param validator The address.
    /// @param until Unix time in seconds before which it may still give verdicts; after a time that has passed it may
    /// give none.
    function removeValidator(uint256 poolId, address validator, uint256 until) external onlyOwner(poolId) {
        uint256 number = _seatNumbers[poolId][validator];
        if (number == 0) revert NotValidator(poolId, validator);
        _requireGrace(until);
        // A seat becomes free one unbonding period after `until`. With a time in the past, it would become free while
        // open work still refers to it.
        uint256 ends = until < block.timestamp ? block.timestamp : until;
        _validatorSeats[poolId][number].until = SafeCast.toUint64(ends);
        emit ValidatorRemoved(poolId, validator, ends);
    }

    /// @notice Returns the keys of a role.
    /// @param poolId The pool.
    /// @param role The role.
    function seatOf(uint256 poolId, Role role) external view returns (Seat memory) {
        return _seats[poolId][role];
    }

    /// @notice Returns whether `who` may act as the pool's manager now.
    /// @param poolId The pool.
    /// @param who The address.
    function isManager(uint256 poolId, address who) public view returns (bool) {
        return _holds(poolId, Role.Manager, who);
    }

    /// @notice Returns whether `who` may act as the pool's orchestrator now.
    /// @param poolId The pool.
    /// @param who The address.
    function isOrchestrator(uint256 poolId, address who) public view returns (bool) {
        return _holds(poolId, Role.Orchestrator, who);
    }

    /// @inheritdoc IComputePools
    function isPublisher(uint256 poolId, address who) external view returns (bool) {
        return _holds(poolId, Role.Publisher, who);
    }

    /// @inheritdoc IComputePools
    function isValidator(uint256 poolId, address who) external view returns (bool) {
        return seatNumberOf(poolId, who) != 0;
    }

    /// @inheritdoc IComputePools
    function seatNumberOf(uint256 poolId, address who) public view returns (uint16) {
        uint16 number = _seatNumbers[poolId][who];
        if (number == 0 || block.timestamp >= _validatorSeats[poolId][number].until) return 0;
        return number;
    }

    /// @inheritdoc IComputePools
    function validatorAt(uint256 poolId, uint16 seat) external view returns (address) {
        return _validatorSeats[poolId][seat].validator;
    }

    /// @inheritdoc IComputePools
    function validatorsOf(uint256 poolId) external view returns (address[] memory found) {
        uint256 last = _seatCount[poolId];
        found = new address[](last);
        uint256 count;
        for (uint256 number = 1; number <= last; ++number) {
            ValidatorSeat memory seat = _validatorSeats[poolId][number];
            if (block.timestamp < seat.until) found[count++] = seat.validator;
        }
        assembly ("memory-safe") {
            mstore(found, count)
        }
    }

    function _seat(uint256 poolId, Roles calldata roles) internal {
        _place(poolId, Role.Manager, roles.manager, 0);
        _place(poolId, Role.Orchestrator, roles.orchestrator, 0);
        _place(poolId, Role.Publisher, roles.publisher, 0);
    }

    /// @dev Gives a validator a seat: one that no open work can refer to any more, or a new one. Returns its number.
    function _freeSeat(uint256 poolId, address validator) private returns (uint256 number) {
        mapping(uint256 number => ValidatorSeat) storage seats = _validatorSeats[poolId];
        uint256 last = _seatCount[poolId];
        uint256 period = stakeManager.unbondingPeriod();
        number = 1;
        while (number <= last && block.timestamp <= seats[number].until + period) ++number;
        if (number > MAX_VALIDATORS) revert TooManyValidators(poolId, MAX_VALIDATORS);
        if (number > last) _seatCount[poolId] = number;
        else delete _seatNumbers[poolId][seats[number].validator];
        seats[number].validator = validator;
        _seatNumbers[poolId][validator] = uint16(number);
    }

    function _requireManager(uint256 poolId) internal view {
        if (!isManager(poolId, msg.sender)) revert NotManager(poolId, msg.sender);
    }

    function _requireOperator(uint256 poolId) internal view {
        if (!isOrchestrator(poolId, msg.sender) && !isManager(poolId, msg.sender)) {
            revert NotOperator(poolId, msg.sender);
        }
    }

    function _rotate(uint256 poolId, Role role, address key, uint256 previousUntil) private {
        if (msg.sender != _pools[poolId].owner && msg.sender != _seats[poolId][role].holder) {
            revert NotHolder(poolId, role, msg.sender);
        }
        _requireGrace(previousUntil);
        _place(poolId, role, key, previousUntil);
    }

    function _place(uint256 poolId, Role role, address key, uint256 previousUntil) private {
        if (key == address(0)) revert NoKey();
        Seat storage seat = _seats[poolId][role];
        (address previous, uint64 until) = (seat.holder, SafeCast.toUint64(previousUntil));
        seat.holder = key;
        seat.previous = previous;
        seat.previousUntil = until;
        emit RoleSet(poolId, role, key, previous, until);
    }

    function _holds(uint256 poolId, Role role, address who) private view returns (bool) {
        if (who == address(0)) return false;
        Seat storage seat = _seats[poolId][role];
        return who == seat.holder || (who == seat.previous && block.timestamp < seat.previousUntil);
    }

    function _requireGrace(uint256 until) private view {
        uint256 latest = block.timestamp + MAX_GRACE;
        if (until > latest) revert GraceTooLong(until, latest);
    }
}
