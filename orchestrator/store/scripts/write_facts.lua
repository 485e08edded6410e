-- Writes facts from discovery about a known node; returns 1 if a value changed. The node's state does not change.
local node, different = P .. 'node:' .. address, 0
if redis.call('EXISTS', node) == 0 then return 0 end
for name, value in pairs(facts) do
  if redis.call('HGET', node, name) ~= value then
    redis.call('HSET', node, name, value)
    different = 1
  end
end
if different == 1 then
  touch(node)
  changed(address)
end
return different
