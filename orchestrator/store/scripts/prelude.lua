-- Constants and functions that precede every script of the orchestrator.
local EVENTS_KEPT = 20000
local HISTORY_KEPT = 256

-- True if the caller still holds the leader lease of a loop, or if `lease` is '' (no lease needed). The value has a
-- fencing token, so a lost lease never compares equal again, even if the same process acquires it again.
local function holds(loop, lease)
  return lease == '' or redis.call('GET', P .. 'lease:' .. loop) == lease
end

-- Appends an event of the pool with only the first line of its detail: further lines are output of a task, which must
-- not reach webhooks and event lists.
local function emit(now, kind, detail, actor, node, task)
  detail = string.match(detail, '^[^\r\n]*')
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*',
    'time', now, 'kind', kind, 'detail', detail, 'actor', actor, 'node', node, 'task', task)
end

-- Tells the scheduler that a node (its address) or some task ('tasks') changed.
local function changed(what)
  redis.call('SADD', P .. 'changed', what)
end

-- Changes the number of a task's assignments in a state by `by`, unless the task was deleted.
local function count(task, state, by)
  if redis.call('EXISTS', P .. 'task:' .. task) == 1 then
    redis.call('HINCRBY', P .. 'counts:' .. task, state, by)
  end
end
