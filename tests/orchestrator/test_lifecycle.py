"""State machine of a node: a table of transitions, and properties of all histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.node_states import MEMBERS, TABLE, NodeAction, NodeEvent, overdue, transition
from protocol.wire.nodes import NodeState

S, E, A = NodeState, NodeEvent, NodeAction


@pytest.mark.parametrize(
    ("state", "event", "after", "actions"),
    [
        (S.DISCOVERED, E.SEEN, S.DISCOVERED, {A.INVITE}),
        (S.DISCOVERED, E.INVITE_POSTED, S.INVITED, {A.AWAIT_JOIN}),
        (S.DISCOVERED, E.HEARTBEAT, S.DISCOVERED, set()),
        (S.INVITED, E.INVITE_EXPIRED, S.DISCOVERED, {A.UNWATCH}),
        (S.INVITED, E.SEEN, S.INVITED, set()),
        (S.INVITED, E.JOINED, S.UNHEALTHY, {A.WATCH_LAST, A.KEEP}),
        (S.UNHEALTHY, E.HEARTBEAT, S.HEALTHY, {A.WATCH, A.KEEP}),
        (S.HEALTHY, E.HEARTBEAT, S.HEALTHY, {A.WATCH}),
        (S.HEALTHY, E.MISSED, S.UNHEALTHY, {A.WATCH_LAST}),
        (S.UNHEALTHY, E.SILENT, S.DEAD, {A.RELEASE, A.UNWATCH, A.REMOVE}),
        (S.DEAD, E.HEARTBEAT, S.HEALTHY, {A.WATCH, A.KEEP}),
        (S.DEAD, E.REMOVED, S.DEAD, {A.KEEP}),
        (S.DEAD, E.SEEN, S.DISCOVERED, {A.INVITE}),
        (S.DEAD, E.JOINED, S.UNHEALTHY, {A.WATCH_LAST, A.KEEP}),
        (S.HEALTHY, E.DRAIN, S.DRAINING, {A.WATCH_LAST}),
        (S.DRAINING, E.HEARTBEAT, S.DRAINING, {A.WATCH_LAST}),
        (S.DRAINING, E.MISSED, S.DRAINING, set()),
        (S.DRAINING, E.SILENT, S.DEAD, {A.RELEASE, A.UNWATCH, A.REMOVE}),
        (S.DRAINING, E.RESUME, S.HEALTHY, {A.WATCH}),
        (S.DRAINING, E.LEFT, S.DISCOVERED, {A.RELEASE, A.UNWATCH, A.KEEP}),
        (S.HEALTHY, E.EVICTED, S.EVICTED, {A.RELEASE, A.UNWATCH, A.KEEP}),
        (S.EVICTED, E.SEEN, S.DISCOVERED, {A.INVITE}),
        (S.EVICTED, E.HEARTBEAT, S.EVICTED, set()),
        (S.HEALTHY, E.BANNED, S.BANNED, {A.RELEASE, A.UNWATCH, A.KEEP}),
        (S.BANNED, E.SEEN, S.BANNED, set()),
        (S.BANNED, E.JOINED, S.BANNED, set()),
        (S.BANNED, E.HEARTBEAT, S.BANNED, set()),
        (S.BANNED, E.UNBANNED, S.DISCOVERED, set()),
    ],
)
def test_node_state_transitions(state: NodeState, event: NodeEvent, after: NodeState, actions: set[NodeAction]) -> None:
    result = transition(state, event)
    assert (result.state, set(result.actions)) == (after, actions)


def test_every_state_is_in_the_table_and_every_pair_has_a_result() -> None:
    assert set(TABLE) == set(NodeState)
    for state in NodeState:
        for event in NodeEvent:
            assert transition(state, event).state in NodeState


NEEDS_A_PERSON = frozenset({NodeEvent.UNBANNED})
"""Events that only the pool's owner or manager can cause."""


def reachable(start: NodeState, events: frozenset[NodeEvent]) -> set[NodeState]:
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for event in events:
            after = transition(state, event).state
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return seen


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.BANNED])
def test_every_state_except_banned_can_return_to_healthy_without_a_person(state: NodeState) -> None:
    assert NodeState.HEALTHY in reachable(state, frozenset(NodeEvent) - NEEDS_A_PERSON)


def test_a_banned_node_becomes_healthy_only_through_a_person() -> None:
    assert reachable(NodeState.BANNED, frozenset(NodeEvent) - NEEDS_A_PERSON) == {NodeState.BANNED}
    assert NodeState.HEALTHY in reachable(NodeState.BANNED, frozenset(NodeEvent))


@given(st.sampled_from(NodeState), st.lists(st.sampled_from(sorted(set(NodeEvent) - {NodeEvent.UNBANNED}))))
def test_a_ban_persists_through_any_other_events(start: NodeState, events: list[NodeEvent]) -> None:
    state = transition(start, NodeEvent.BANNED).state
    for event in events:
        state = transition(state, event).state
        assert state is NodeState.BANNED


@given(st.sampled_from(NodeState), st.lists(st.sampled_from(NodeEvent), max_size=40))
def test_a_nodes_assignment_is_released_when_it_stops_being_a_member(start: NodeState, events: list[NodeEvent]) -> None:
    state = start
    for event in events:
        result = transition(state, event)
        if state in MEMBERS and result.state not in MEMBERS:
            assert NodeAction.RELEASE in result.actions
        if NodeAction.RELEASE in result.actions:
            assert result.state not in MEMBERS
        state = result.state


@given(st.sampled_from(NodeState), st.sampled_from(NodeEvent))
def test_every_node_that_should_send_heartbeats_is_watched(state: NodeState, event: NodeEvent) -> None:
    result = transition(state, event)
    if result.state is not state:
        watched = bool({NodeAction.WATCH, NodeAction.WATCH_LAST, NodeAction.AWAIT_JOIN} & set(result.actions))
        assert watched == (overdue(result.state) is not None)


@pytest.mark.parametrize("state", NodeState)
def test_silence_always_changes_the_state_of_a_watched_node(state: NodeState) -> None:
    event = overdue(state)
    if event is not None:
        assert transition(state, event).state is not state


def test_a_heartbeat_leaves_only_healthy_and_draining_nodes_unchanged() -> None:
    left_alone = {s for s, row in TABLE.items() if NodeEvent.HEARTBEAT in row and row[NodeEvent.HEARTBEAT].state is s}
    assert left_alone == {S.HEALTHY, S.DRAINING}
