-- Takes an assignment from a node and writes down how it ended. 1: done, 0: gone already, -1: the lease was lost.
-- ARGV: lease, address, assignment, final state, why, now, kept (ms), outcome (JSON or '': it counts for nothing)
local lease, address, id, state, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now, kept, outcome = ARGV[6], ARGV[7], ARGV[8]
if not holds('scheduler', lease) then return -1 end
local node, assignment = P .. 'node:' .. address, P .. 'assignment:' .. id
local f = redis.call('HMGET', node, 'aid', 'astate')
if f[1] ~= id then return 0 end
local task = redis.call('HGET', assignment, 'task') or ''
redis.call('HDEL', node, 'aid', 'agen', 'ahead', 'aref', 'afp', 'astate')
redis.call('HSET', assignment, 'state', state, 'ended', now, 'because', why)
if state == 'failed' then
  redis.call('HSET', node, 'failure', 'task ' .. (redis.call('HGET', assignment, 'name') or task) .. ' failed here: ' .. why)
end
redis.call('PEXPIRE', assignment, kept)
redis.call('SREM', P .. 'placed:' .. task, address)
count(task, f[2] or 'pending', -1)
if outcome ~= '' and redis.call('EXISTS', P .. 'task:' .. task) == 1 then
  redis.call('HSET', P .. 'outcomes:' .. task, id, outcome)
  count(task, state, 1)
end
changed(address)
emit(now, 'assignment.ended', why, 'scheduler', address, task)
return 1
