-- Deletes a task; what still runs of it is stopped by the scheduler. ARGV: task, now, actor
local id, now, actor = ARGV[1], ARGV[2], ARGV[3]
local name = redis.call('HGET', P .. 'task:' .. id, 'name')
if not name then return 0 end
redis.call('ZREM', P .. 'tasks', id)
redis.call('SREM', P .. 'tasks:open', id)
redis.call('DEL', P .. 'task:' .. id, P .. 'counts:' .. id, P .. 'outcomes:' .. id)
changed('tasks')
emit(now, 'task.deleted', name, actor, '', id)
return 1
