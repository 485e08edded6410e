-- Deletes a task; the scheduler stops its assignments.
local name = redis.call('HGET', P .. 'task:' .. task, 'name')
if not name then return 0 end
redis.call('ZREM', P .. 'tasks', task)
redis.call('SREM', P .. 'tasks:open', task)
redis.call('DEL', P .. 'task:' .. task, P .. 'counts:' .. task, P .. 'outcomes:' .. task)
changed('tasks')
emit(now_ms, 'task.deleted', name, actor, '', task)
return 1
