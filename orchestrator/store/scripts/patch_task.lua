-- Writes a task if nobody changed it since it was read. 1: written, 0: somebody did.
-- ARGV: task, revision read ('' for a new task), now, open ('1' or '0'), kind of event, actor, created (ms), then fields
local id, revision, now, open, kind, actor, created = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local task = P .. 'task:' .. id
if (redis.call('HGET', task, 'rev') or '') ~= revision then return 0 end
for i = 8, #ARGV, 2 do redis.call('HSET', task, ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', task, 'rev', 1)
redis.call('ZADD', P .. 'tasks', created, id)
if open == '1' then redis.call('SADD', P .. 'tasks:open', id) else redis.call('SREM', P .. 'tasks:open', id) end
changed('tasks')
emit(now, kind, redis.call('HGET', task, 'name') or '', actor, '', id)
return 1
