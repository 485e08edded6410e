-- Writes a task; returns 0 if the task changed after it was read.
local stored = P .. 'task:' .. task
if (redis.call('HGET', stored, 'rev') or '') ~= revision then return 0 end
set_fields(stored, fields)
redis.call('HINCRBY', stored, 'rev', 1)
touch(stored)
redis.call('ZADD', P .. 'tasks', created_ms, task)
redis.call(is_open and 'SADD' or 'SREM', P .. 'tasks:open', task)
changed('tasks')
emit(now_ms, kind, redis.call('HGET', stored, 'name') or '', actor, '', task)
return 1
