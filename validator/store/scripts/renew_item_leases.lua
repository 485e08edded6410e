-- Renews leases; returns the ids of the items whose leases are lost.
local lost, until_ms = {}, clock() + lease_ms
for id, token in pairs(tokens) do
  local now = redis.call('HMGET', P .. 'item:' .. id, 'token', 'state')
  if now[1] == token and now[2] == 'leased' then
    redis.call('ZADD', P .. 'queue:leased', until_ms, id)
  else
    lost[#lost + 1] = id
  end
end
return lost
