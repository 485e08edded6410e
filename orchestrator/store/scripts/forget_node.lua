-- Deletes a node that is no member, holds no slot and was not listed by discovery for a long time, with its history.
-- Returns 0 if the node changed after it was read, or if something still refers to it.
local node = P .. 'node:' .. address
local f = redis.call('HMGET', node, 'ver', 'state', 'member', 'aid')
if f[1] ~= version or f[2] ~= 'discovered' or f[3] == '1' or f[4] then return 0 end
for _, listed in ipairs({'deadlines', 'removals'}) do
  if redis.call('ZSCORE', P .. listed, address) then return 0 end
end
if redis.call('EXISTS', P .. 'run:node:' .. address) == 1 then return 0 end
redis.call('ZREM', P .. 'nodes', address)
redis.call('DEL', node, P .. 'history:' .. address, P .. 'commands:' .. address)
return 1
