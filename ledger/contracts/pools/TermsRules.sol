// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Terms} from "../interfaces/IComputePools.sol";

/// @title Rules for the terms of a pool
/// @notice The rules ensure that forged work costs a provider more than it earns on average, and that a provider can't
/// withdraw stake before its work is final.
library TermsRules {
    /// @notice 100 % in basis points.
    uint256 internal constant WHOLE = 10_000;

    /// @notice The audit floor must be 1 to 10000 basis points: without audits, no penalty would deter forging.
    error AuditFloorOutOfRange(uint16 auditFloorBps);
    /// @notice The share of paid second looks must be 0 to 10000 basis points.
    error LookShareOutOfRange(uint16 lookBps);
    /// @notice The penalty must be at least price x (1 - q) / q, where q is the audit floor as a fraction. With a lower
    /// penalty, forged work would earn more on average than it costs.
    error PenaltyTooLow(uint128 penaltyPerUnit, uint256 least);
    /// @notice Every period must be above zero.
    error PeriodMissing();
    /// @notice The sum of all periods must be shorter than the unbonding period of stake.
    error PeriodsTooLong(uint256 sum, uint256 unbondingPeriod);

    /// @notice Reverts unless the terms follow all rules.
    /// @param terms The terms.
    /// @param unbondingPeriod Seconds that stake stays slashable after its owner began to unbond it.
    function check(Terms memory terms, uint256 unbondingPeriod) internal pure {
        uint256 floor = terms.auditFloorBps;
        if (floor == 0 || floor > WHOLE) revert AuditFloorOutOfRange(terms.auditFloorBps);
        if (terms.lookBps > WHOLE) revert LookShareOutOfRange(terms.lookBps);
        uint256 least = Math.ceilDiv(uint256(terms.pricePerUnit) * (WHOLE - floor), floor);
        if (terms.penaltyPerUnit < least) revert PenaltyTooLow(terms.penaltyPerUnit, least);
        if (
            terms.judgePeriod == 0 || terms.challengePeriod == 0 || terms.disputePeriod == 0
                || terms.noticePeriod == 0
        ) revert PeriodMissing();
        uint256 sum = uint256(terms.judgePeriod) + terms.challengePeriod + terms.disputePeriod + terms.noticePeriod;
        if (sum >= unbondingPeriod) revert PeriodsTooLong(sum, unbondingPeriod);
    }
}
