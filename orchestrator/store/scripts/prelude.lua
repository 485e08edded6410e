-- Constants and functions that are prepended to every script of the orchestrator.
local EVENTS_KEPT = 100000
local HISTORY_KEPT = 256

-- Returns whether the caller holds the leader lease of a loop; true if `lease` is '', because the call needs no lease.
-- A lease's value contains a fencing token, so the value of a lost lease never becomes valid again, even if the same
-- process acquires the lease again.
local function holds(loop, lease)
  return lease == '' or redis.call('GET', P .. 'lease:' .. loop) == lease
end

-- Appends an event of the pool with only the first line of its detail. Further lines are output of a task, which must
-- not reach webhooks and event lists.
local function emit(now, kind, detail, actor, node, task)
  detail = string.match(detail, '^[^\r\n]*')
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*',
    'time', now, 'kind', kind, 'detail', detail, 'actor', actor, 'node', node, 'task', task)
end

-- Tells the scheduler what changed: the address of a node, or 'tasks' for some task.
local function changed(entry)
  redis.call('SADD', P .. 'changed', entry)
end

-- Adds `by` to the number of a task's assignments in a state, unless the task was deleted.
local function count(task, state, by)
  if redis.call('EXISTS', P .. 'task:' .. task) == 1 then
    redis.call('HINCRBY', P .. 'counts:' .. task, state, by)
  end
end
