-- Gives a node an assignment, if it is free and may take one. 1: given, 0: the node changed, -1: the lease was lost.
-- ARGV: lease, address, assignment, head, reference, task, task name, now, group (JSON or '')
local lease, address, id, head, reference = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local task, name, now, group = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
if not holds('scheduler', lease) then return -1 end
local node = P .. 'node:' .. address
local f = redis.call('HMGET', node, 'state', 'aid')
if f[1] ~= 'healthy' or (f[2] and f[2] ~= '') or redis.call('EXISTS', P .. 'task:' .. task) == 0 then return 0 end
redis.call('HSET', node, 'aid', id, 'agen', 1, 'ahead', head, 'aref', reference, 'afp', '', 'astate', 'pending',
  'last_aid', id)
redis.call('HSET', P .. 'assignment:' .. id, 'id', id, 'task', task, 'name', name, 'node', address, 'generation', 1,
  'state', 'pending', 'assigned', now, 'group', group)
redis.call('SADD', P .. 'placed:' .. task, address)
count(task, 'pending', 1)
redis.call('HDEL', node, 'failure')
changed(address)
emit(now, 'assignment.placed', name, 'scheduler', address, task)
return 1
