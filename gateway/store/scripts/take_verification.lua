-- Takes the answer that waits longest for a verifier with one of these versions.
local best, at
for _, digest in ipairs(versions) do
  local first = redis.call('ZRANGE', P .. 'verify:' .. digest, 0, 0, 'WITHSCORES')
  if first[1] and (not at or number(first[2]) < at) then best, at = {digest, first[1]}, number(first[2]) end
end
if not best then return reply{} end
redis.call('ZREM', P .. 'verify:' .. best[1], best[2])
local v = redis.call('HMGET', P .. 'verification:' .. best[2], 'kind', 'body', 'answer', 'ends', 'seed', 'cap')
if not v[1] then return reply{} end
return reply{id = best[2], version = best[1], kind = v[1], body = v[2], answer = v[3], ends_ms = number(v[4]), seed = v[5],
  cap = number(v[6])}
