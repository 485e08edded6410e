-- Writes the state that a plan of the scheduler determined for a task; returns 0 if the task was changed or has ended
-- since, and -1 if the caller lost the leader lease.
if not holds('scheduler', lease) then return -1 end
local stored = P .. 'task:' .. task
local f = redis.call('HMGET', stored, 'generation', 'state', 'reason', 'desired')
if tonumber(f[1]) ~= generation or f[4] ~= 'running' then return 0 end
if redis.call('SISMEMBER', P .. 'tasks:open', task) == 0 then return 0 end
if f[2] == state and f[3] == reason then return 1 end
redis.call('HSET', stored, 'state', state, 'reason', reason)
touch(stored)
if over then
  redis.call('SREM', P .. 'tasks:open', task)
  redis.call('HSET', stored, 'ended', now_ms)
end
if f[2] ~= state then emit(now_ms, 'task.' .. state, reason, 'scheduler', '', task) end
return 1
