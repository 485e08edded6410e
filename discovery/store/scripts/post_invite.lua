-- KEYS: node, its invites. Answers 0 posted, 1 no such node, 2 the node wants another pool.
local pool, now_ms, now_s, invite, expiry, most = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local record = redis.call('HMGET', KEYS[1], 'pool', 'expires')
if not record[1] or tonumber(record[2]) <= now_ms then return 1 end
if record[1] ~= pool then return 2 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_s)
redis.call('ZADD', KEYS[2], expiry, invite)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -(most + 1))
redis.call('EXPIRE', KEYS[2], ARGV[7])
redis.call('PUBLISH', ARGV[8], ARGV[9])
return 0
