-- Renews leases; answers those that are lost.
-- ARGV: length of a lease (ms), then id, token, id, token, ...
local P, lost, until_ms = KEYS[1], {}, clock() + ARGV[1]
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local now = redis.call('HMGET', P .. 'item:' .. id, 'token', 'state')
  if now[1] == ARGV[i + 1] and now[2] == 'leased' then
    redis.call('ZADD', P .. 'queue:leased', until_ms, id)
  else
    lost[#lost + 1] = id
  end
end
return lost
