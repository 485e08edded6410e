-- Writes facts from discovery or the ledger about a known node, without touching its state; 1 if something changed.
local node, different = P .. 'node:' .. address, 0
if redis.call('EXISTS', node) == 0 then return 0 end
for name, value in pairs(facts) do
  if redis.call('HGET', node, name) ~= value then
    redis.call('HSET', node, name, value)
    different = 1
  end
end
if different == 1 then changed(address) end
return different
