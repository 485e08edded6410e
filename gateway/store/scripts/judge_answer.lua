-- Records a verifier's result. The third `unknown` counts like a time-out. A node whose answer was found invalid gets no further requests for `distrust_ms`.
local key = P .. 'verification:' .. id
local v = redis.call('HMGET', key, 'digest', 'mode', 'node', 'last', 'used', 'attempt')
if not v[1] then return reply{outcome = 'late'} end
if verdict == 'unknown' and redis.call('HINCRBY', key, 'unknown', 1) < 3 then
  redis.call('ZADD', P .. 'verify:' .. v[1], 'NX', now_ms, id)
  return reply{outcome = 'ok', node = v[3]}
end
redis.call('DEL', key)
redis.call('ZREM', P .. 'verify:' .. v[1], id)
redis.call('ZREM', P .. 'verify-ends', id)
if verdict == 'unknown' then
  if v[2] == 'before' then settle(id, 'unverified', 0, unverified) end
elseif verdict == 'valid' then
  if v[2] == 'before' then settle(id, 'answered', number(v[5]), v[4]) end
else
  redis.call('SET', P .. 'distrusted:' .. v[3], 'invalid', 'PX', distrust_ms)
  if v[2] == 'before' then try_again(id, now_ms, true, last) end
end
return reply{outcome = 'ok', node = v[3]}
