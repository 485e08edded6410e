-- Writes where a task stands, if it is still of this generation and not over. 1: written, 0: not, -1: lease lost.
-- ARGV: lease, task, generation, state, reason, now, over ('1' if the state is final)
local lease, id, generation, state, reason, now, over = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if not holds('scheduler', lease) then return -1 end
local task = P .. 'task:' .. id
local f = redis.call('HMGET', task, 'generation', 'state', 'reason', 'desired')
if f[1] ~= generation or f[4] ~= 'running' or redis.call('SISMEMBER', P .. 'tasks:open', id) == 0 then return 0 end
if f[2] == state and f[3] == reason then return 1 end
redis.call('HSET', task, 'state', state, 'reason', reason)
if over == '1' then
  redis.call('SREM', P .. 'tasks:open', id)
  redis.call('HSET', task, 'ended', now)
end
if f[2] ~= state then emit(now, 'task.' .. state, reason, 'scheduler', '', id) end
return 1
