-- Deletes a task; the scheduler stops its assignments.
local f = redis.call('HMGET', P .. 'task:' .. task, 'name', 'rev')
local name = f[1]
if not name then return 'unknown' end
if revision and revision ~= f[2] then return 'changed' end
redis.call('ZREM', P .. 'tasks', task)
redis.call('SREM', P .. 'tasks:open', task)
redis.call('DEL', P .. 'task:' .. task, P .. 'counts:' .. task, P .. 'outcomes:' .. task)
changed('tasks')
emit(now_ms, 'task.deleted', name, actor, '', task)
return 'deleted'
