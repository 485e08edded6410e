-- Constants and functions that are prepended to every script of the orchestrator.
local EVENTS_KEPT = 100000
local HISTORY_KEPT = 256
local MOST_DAYS = 92 -- days of which the earnings are kept (store/accounts.py)
local FORGOTTEN_AT_ONCE = 16

-- Returns whether the caller holds the leader lease of a loop; true if `lease` is '', because the call needs no lease.
-- A lease's value contains a fencing token, so the value of a lost lease never becomes valid again, even if the same
-- process acquires the lease again.
local function holds(loop, lease)
  return lease == '' or redis.call('GET', P .. 'lease:' .. loop) == lease
end

-- Appends an event of the pool with only the first line of its detail. Further lines are output of a task, which must
-- not reach webhooks and event lists. `assignment` is optional.
local function emit(now, kind, detail, actor, node, task, assignment)
  detail = string.match(detail, '^[^\r\n]*')
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*',
    'time', now, 'kind', kind, 'detail', detail, 'actor', actor, 'node', node, 'task', task,
    'assignment', assignment or '')
end

-- Tells the scheduler what changed: the address of a node, or 'tasks' for some task.
local function changed(entry)
  redis.call('SADD', P .. 'changed', entry)
end

-- Raises the version of a task or node, for which blocking reads wait.
local function touch(key)
  redis.call('HINCRBY', key, 'ver', 1)
end

-- Adds `by` to the number of a task's assignments in a state, unless the task was deleted.
local function count(task, state, by)
  if redis.call('EXISTS', P .. 'task:' .. task) == 1 then
    redis.call('HINCRBY', P .. 'counts:' .. task, state, by)
    touch(P .. 'task:' .. task)
  end
end

-- Returns the names of the three indexes that list an assignment: of the pool, of its task and of its node. The entries
-- of an index sort by the time of the assignment.
local function assignment_indexes(task, node)
  local pool = P .. 'assignments'
  return {pool, pool .. ':task:' .. task, pool .. ':node:' .. node}
end

local function assignment_entry(assigned, assignment)
  return string.format('%014d-%s', assigned, assignment)
end

-- Records the size of an assignment's log, and the sum over all logs of the pool; 0 removes the log from both.
local function set_log_size(assignment, bytes)
  local sizes = P .. 'log-sizes'
  redis.call('INCRBY', P .. 'log-total', int(bytes - tonumber(redis.call('ZSCORE', sizes, assignment) or '0')))
  if bytes > 0 then redis.call('ZADD', sizes, bytes, assignment) else redis.call('ZREM', sizes, assignment) end
end

-- Deletes some of the oldest ended assignments with their logs: those that ended more than `kept_ms` ago, and those
-- beyond `most`.
local function forget_assignments(now, kept_ms, most)
  local ended = P .. 'assignments:ended'
  local oldest = redis.call('ZRANGE', ended, 0, FORGOTTEN_AT_ONCE - 1, 'WITHSCORES')
  local excess = redis.call('ZCARD', ended) - most
  for i = 1, #oldest, 2 do
    if tonumber(oldest[i + 1]) > now - kept_ms and (i + 1) / 2 > excess then return end
    local entry, assignment, task, node = string.match(oldest[i], '^(%d+%-(%x+)):(%x*):(%w+)$')
    for _, index in ipairs(assignment_indexes(task, node)) do redis.call('ZREM', index, entry) end
    redis.call('DEL', P .. 'assignment:' .. assignment, P .. 'logs:' .. assignment)
    set_log_size(assignment, 0)
    redis.call('ZREM', ended, oldest[i])
  end
end
