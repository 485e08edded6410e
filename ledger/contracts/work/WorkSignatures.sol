// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Lease} from "./WorkTypes.sol";

/// @title EIP-712 signatures of leases, work claims and disputes
abstract contract WorkSignatures is EIP712 {
    bytes32 private constant _LEASE = keccak256(
        "Lease(uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest,uint64 beaconBlock,bytes32 salt,uint32 groups,uint64 maxUnits,uint64 expiry)"
    );
    bytes32 private constant _WORK = keccak256("Work(bytes32 leaseHash,bytes32 sha256Hash,uint64 units)");
    bytes32 private constant _DISPUTE = keccak256("Dispute(bytes32 key,bytes32 evidenceHash,uint256 deadline)");

    constructor() EIP712("Muster", "2") {}

    /// @notice Returns the EIP-712 struct hash of a lease, which the node's signed `Work` contains.
    /// @param lease The lease.
    function leaseHash(Lease calldata lease) external pure returns (bytes32) {
        return _hashLease(lease);
    }

    /// @notice Returns the key of a work item. Submissions for different slots have different keys.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    /// @param node The node that does the work.
    /// @param step The step of the run.
    /// @param index Number of the slot among those of the same run, step and node.
    function workKey(uint256 poolId, bytes32 run, address node, uint64 step, uint32 index)
        public
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(poolId, run, node, step, index));
    }

    function _hashLease(Lease calldata lease) internal pure returns (bytes32) {
        // All members have a fixed size. So the ABI encoding of the struct equals that of its members one after
        // another.
        return keccak256(abi.encode(_LEASE, lease));
    }

    /// @dev Returns the signer of the lease; zero if the signature is invalid.
    function _leaseSigner(bytes32 hash, bytes calldata signature) internal view returns (address) {
        return _signer(hash, signature);
    }

    /// @dev Returns the signer of the work claim; zero if the signature is invalid.
    function _workSigner(bytes32 lease, bytes32 sha256Hash, uint64 units, bytes calldata signature)
        internal
        view
        returns (address)
    {
        return _signer(keccak256(abi.encode(_WORK, lease, sha256Hash, units)), signature);
    }

    /// @dev Returns the signer of the dispute; zero if the signature is invalid.
    function _disputeSigner(bytes32 key, bytes32 evidenceHash, uint256 deadline, bytes calldata signature)
        internal
        view
        returns (address)
    {
        return _signer(keccak256(abi.encode(_DISPUTE, key, evidenceHash, deadline)), signature);
    }

    function _signer(bytes32 structHash, bytes calldata signature) private view returns (address signer) {
        (signer,,) = ECDSA.tryRecoverCalldata(_hashTypedDataV4(structHash), signature);
    }
}
