-- Begins every script of the orchestrator.
local EVENTS_KEPT = 20000
local HISTORY_KEPT = 256

-- True if the caller still holds the lease of a loop, or needs none (''). The value has the fencing token: a lease that
-- was lost never compares equal again, even if the same process acquires it anew.
local function holds(loop, lease)
  return lease == '' or redis.call('GET', P .. 'lease:' .. loop) == lease
end

-- Appends an event of the pool. Only the first line of its detail: the rest is output of a task, which must not reach
-- webhooks and event lists.
local function emit(now, kind, detail, actor, node, task)
  detail = string.match(detail, '^[^\r\n]*')
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*',
    'time', now, 'kind', kind, 'detail', detail, 'actor', actor, 'node', node, 'task', task)
end

-- Notes for the scheduler that a node, or 'tasks', changed.
local function changed(what)
  redis.call('SADD', P .. 'changed', what)
end

-- Changes the number of nodes that are in this state with a task.
local function count(task, state, by)
  if redis.call('EXISTS', P .. 'task:' .. task) == 1 then
    redis.call('HINCRBY', P .. 'counts:' .. task, state, by)
  end
end
