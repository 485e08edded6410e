-- Tells a node a new generation of what it runs. 1: told, 0: it runs something else by now, -1: the lease was lost.
-- ARGV: lease ('' for a person's wish), address, assignment, generation read, head, reference, now, why, actor
local lease, address, id, generation = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local head, reference, now, why, actor = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
if not holds('scheduler', lease) then return -1 end
local node, assignment = P .. 'node:' .. address, P .. 'assignment:' .. id
local f = redis.call('HMGET', node, 'aid', 'agen', 'astate')
if f[1] ~= id or f[2] ~= generation then return 0 end
local task = redis.call('HGET', assignment, 'task') or ''
redis.call('HSET', node, 'agen', tonumber(generation) + 1, 'ahead', head, 'aref', reference, 'afp', '',
  'astate', 'pending')
redis.call('HSET', assignment, 'generation', tonumber(generation) + 1, 'state', 'pending', 'detail', '')
count(task, f[3] or 'pending', -1)
count(task, 'pending', 1)
changed(address)
emit(now, 'assignment.renewed', why, actor, address, task)
return 1
