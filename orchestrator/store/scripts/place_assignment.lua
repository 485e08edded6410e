-- Gives a node an assignment; returns 0 if the node is not healthy or not free, or if the task was deleted, and -1 if
-- the caller lost the leader lease.
if not holds('scheduler', lease) then return -1 end
local node = P .. 'node:' .. address
local f = redis.call('HMGET', node, 'state', 'aid')
if f[1] ~= 'healthy' or (f[2] and f[2] ~= '') or redis.call('EXISTS', P .. 'task:' .. task) == 0 then return 0 end
redis.call('HSET', node, 'aid', assignment, 'agen', 1, 'ahead', head, 'aref', reference, 'afp', '', 'astate', 'pending',
  'last_aid', assignment)
redis.call('HSET', P .. 'assignment:' .. assignment, 'id', assignment, 'task', task, 'name', task_name, 'node', address,
  'generation', 1, 'state', 'pending', 'assigned', now_ms, 'group', group)
local entry = assignment_entry(now_ms, assignment)
for _, index in ipairs(assignment_indexes(task, address)) do redis.call('ZADD', index, 0, entry) end
redis.call('SADD', P .. 'placed:' .. task, address)
count(task, 'pending', 1)
touch(node)
redis.call('HDEL', node, 'failure')
changed(address)
emit(now_ms, 'assignment.placed', task_name, 'scheduler', address, task, assignment)
return 1
