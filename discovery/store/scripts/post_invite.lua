-- Stores an invite for a registered node, and notifies the instance on which the node's long poll waits.
local record = redis.call('HMGET', P .. 'node:' .. node, 'pool', 'expires')
if not record[1] or tonumber(record[2]) <= now_ms then return 'unknown-node' end
if record[1] ~= pool then return 'other-pool' end
local box = P .. 'invites:' .. node
local spare_s = 3600
redis.call('ZREMRANGEBYSCORE', box, '-inf', now_s)
redis.call('ZADD', box, expiry_s, invite)
redis.call('ZREMRANGEBYRANK', box, 0, -(most_invites + 1))
-- The mailbox lasts as long as its last invite, which need not be the posted one.
local last = redis.call('ZRANGE', box, -1, -1, 'WITHSCORES')
redis.call('EXPIRE', box, math.max(1, tonumber(last[2]) - now_s) + spare_s)
redis.call('PUBLISH', channel, node)
return 'posted'
