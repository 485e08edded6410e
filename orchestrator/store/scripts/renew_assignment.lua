-- Gives a node a new generation of its assignment; returns 0 if the node holds another assignment or generation, and -1
-- if the caller lost the leader lease. `restart` is the id of an owner's restart, or ''; a repeated one returns 1.
if not holds('scheduler', lease) then return -1 end
local node, stored = P .. 'node:' .. address, P .. 'assignment:' .. assignment
if restart ~= '' and redis.call('HGET', node, 'restarted') == restart then return 1 end
local f = redis.call('HMGET', node, 'aid', 'agen', 'astate')
if f[1] ~= assignment or tonumber(f[2]) ~= generation then return 0 end
if restart ~= '' then redis.call('HSET', node, 'restarted', restart) end
local task = redis.call('HGET', stored, 'task') or ''
redis.call('HSET', node, 'agen', generation + 1, 'ahead', head, 'aref', reference, 'afp', '', 'astate', 'pending')
redis.call('HSET', stored, 'generation', generation + 1, 'state', 'pending', 'detail', '')
count(task, f[3] or 'pending', -1)
count(task, 'pending', 1)
touch(node)
changed(address)
emit(now_ms, 'assignment.renewed', why, actor, address, task, assignment)
return 1
