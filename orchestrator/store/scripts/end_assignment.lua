-- Ends a node's assignment and records its outcome; returns 0 if the node does not hold the assignment any more, and -1
-- if the caller lost the leader lease.
if not holds('scheduler', lease) then return -1 end
local node, stored = P .. 'node:' .. address, P .. 'assignment:' .. assignment
local f = redis.call('HMGET', node, 'aid', 'astate')
if f[1] ~= assignment then return 0 end
local known = redis.call('HMGET', stored, 'task', 'assigned')
local task = known[1] or ''
redis.call('HDEL', node, 'aid', 'agen', 'ahead', 'aref', 'afp', 'astate')
redis.call('HSET', stored, 'state', state, 'ended', now_ms, 'because', why)
if state == 'failed' then
  local name = redis.call('HGET', stored, 'name') or task
  redis.call('HSET', node, 'failure', 'task ' .. name .. ' failed here: ' .. why)
end
redis.call('PEXPIRE', stored, kept_ms)
local entry = assignment_entry(known[2] or now_ms, assignment)
redis.call('ZADD', P .. 'assignments:ended', now_ms, entry .. ':' .. task .. ':' .. address)
forget_assignments(now_ms, kept_ms, most_ended)
redis.call('SREM', P .. 'placed:' .. task, address)
count(task, f[2] or 'pending', -1)
if outcome and redis.call('EXISTS', P .. 'task:' .. task) == 1 then
  redis.call('HSET', P .. 'outcomes:' .. task, assignment, outcome)
  count(task, state, 1)
end
touch(node)
changed(address)
emit(now_ms, 'assignment.ended', why, 'scheduler', address, task, assignment)
return 1
