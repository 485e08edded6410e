-- Begins every script. KEYS[1] is the pool's prefix, `muster:{pool-…}:`: it carries the hash tag, so that all keys of a
-- pool live in one slot of a cluster and a script may name them from it. Redis 6.2 commands only.
local P = KEYS[1]
local EVENTS_KEPT = 20000
local HISTORY_KEPT = 256

-- Whether the caller still holds the lease of a loop. Its value carries the fencing token: one that was lost, and taken
-- by somebody else or by the same process again, never compares equal.
local function holds(loop, lease)
  return lease == '' or redis.call('GET', P .. 'lease:' .. loop) == lease
end

-- Its detail is one line: what follows in a report is the output of a task, which goes to no webhook and no event list.
local function emit(now, kind, detail, actor, node, task)
  detail = string.match(detail, '^[^\r\n]*')
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*',
    'time', now, 'kind', kind, 'detail', detail, 'actor', actor, 'node', node, 'task', task)
end

local function changed(what)
  redis.call('SADD', P .. 'changed', what)
end

-- How many nodes are in which state with a task.
local function count(task, state, by)
  if redis.call('EXISTS', P .. 'task:' .. task) == 1 then
    redis.call('HINCRBY', P .. 'counts:' .. task, state, by)
  end
end
