-- Writes down a verdict before it is sent. Answers 1, or 0 if the lease was lost.
-- ARGV: id, token, staged
local item = KEYS[1] .. 'item:' .. ARGV[1]
local now = redis.call('HMGET', item, 'token', 'state')
if now[1] ~= ARGV[2] or now[2] ~= 'leased' then return 0 end
redis.call('HSET', item, 'staged', ARGV[3])
return 1
