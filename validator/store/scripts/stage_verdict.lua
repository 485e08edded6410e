-- Stores the verdict on a leased item before it is sent; returns 0 if the lease was lost.
local item = P .. 'item:' .. id
local held = redis.call('HMGET', item, 'token', 'state')
if held[1] ~= token or held[2] ~= 'leased' then return 0 end
redis.call('HSET', item, 'staged', staged)
return 1
