-- Admits a client's request within the limits of its token, and gives it to a session or lets it wait.
local key = request_of(id)
if redis.call('EXISTS', key) == 1 then return reply{outcome = 'ok'} end
local t = redis.call('HMGET', P .. 'token:' .. token, 'revoked', 'expires', 'per_minute', 'concurrent', 'per_day')
if not t[2] or t[1] == '1' then return reply{outcome = 'revoked'} end
if number(t[2]) > 0 and now_ms >= number(t[2]) then return reply{outcome = 'expired'} end
local limit = number(redis.call('HGET', P .. 'limits', digest))
if limit == 0 then return reply{outcome = 'not-served'} end
if new_tokens > limit then return reply{outcome = 'tokens', limit = limit} end
local reserved = choices * (new_tokens > 0 and new_tokens or limit)
if reserved > most_tokens then return reply{outcome = 'size', limit = most_tokens} end
local active = P .. 'active:' .. token
if redis.call('SCARD', active) >= number(t[4]) then return reply{outcome = 'concurrent', limit = number(t[4])} end
local minute = P .. 'minute:' .. token .. ':' .. int(math.floor(now_ms / 60000))
if number(redis.call('GET', minute)) >= number(t[3]) then
  return reply{outcome = 'minute', limit = number(t[3]), wait_ms = 60000 - now_ms % 60000}
end
local day, today = P .. 'day:' .. token, int(math.floor(now_ms / 86400000))
if number(t[5]) > 0 and number(redis.call('HGET', day, today)) + reserved > number(t[5]) then
  return reply{outcome = 'day', limit = number(t[5]), wait_ms = 86400000 - now_ms % 86400000}
end
local queue = P .. 'waiting:' .. digest
if redis.call('ZCARD', queue) >= most_waiting then return reply{outcome = 'full', limit = most_waiting} end

redis.call('INCR', minute)
redis.call('PEXPIRE', minute, 120000)
for _, other in ipairs(redis.call('HKEYS', day)) do
  if number(other) < number(today) - 1 then redis.call('HDEL', day, other) end
end
redis.call('HINCRBY', day, today, reserved)
redis.call('PEXPIRE', day, 3 * 86400000)
redis.call('SADD', active, id)
redis.call('PEXPIRE', active, request_ms + kept_ms)
redis.call('SADD', P .. 'requests:' .. replica, id)
redis.call('HSET', key, 'state', 'waiting', 'token', token, 'replica', replica, 'kind', kind, 'digest', digest,
  'choices', choices, 'new_tokens', new_tokens, 'reserved', reserved, 'day', today, 'cost', cost, 'seed', seed,
  'verify', verify, 'with_pieces', with_pieces and 1 or 0, 'created', now_ms, 'attempt', 0, 'tried', '', 'body', body,
  'reply', form)
redis.call('PEXPIRE', key, request_ms + kept_ms)
redis.call('ZADD', queue, now_ms, id)
assign(digest, now_ms)
return reply{outcome = 'ok', limit = limit}
