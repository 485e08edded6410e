-- Writes how something fared. 1: written, 0: it is settled already, -1: the lease of the loop was lost.
-- ARGV: lease, kind, name, state, reason, passing, due ('' if it is settled), 1 to count a refusal, kept for in ms
local lease, kind, name, state, reason, passing, due, refused, kept = unpack(ARGV)
if not holds('relayer', lease) then return -1 end
local key = P .. 'relay:' .. kind .. ':' .. name
if redis.call('HGET', key, 'state') ~= 'queued' then return 0 end
redis.call('HSET', key, 'state', state, 'reason', reason, 'passing', passing)
redis.call('HINCRBY', key, 'refusals', refused)
if state == 'queued' then
  redis.call('HINCRBY', key, 'tries', 1)
  redis.call('ZADD', P .. 'relay:' .. kind, due, name)
else
  redis.call('ZREM', P .. 'relay:' .. kind, name)
  redis.call('PEXPIRE', key, kept)
end
return 1
