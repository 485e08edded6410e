-- Writes what discovery or the ledger says of a node without touching its state. Answers 1 if something changed.
-- ARGV: address, then fields and values in turn
local address, different = ARGV[1], 0
local node = P .. 'node:' .. address
if redis.call('EXISTS', node) == 0 then return 0 end
for i = 2, #ARGV, 2 do
  if redis.call('HGET', node, ARGV[i]) ~= ARGV[i + 1] then
    redis.call('HSET', node, ARGV[i], ARGV[i + 1])
    different = 1
  end
end
if different == 1 then changed(address) end
return different
