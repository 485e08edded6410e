-- Lists the members of this Redis with their fields, in the order of their last announcement.
local found, listed = {}, redis.call('ZRANGE', P .. 'members', 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local row = redis.call('HGETALL', P .. 'member:' .. listed[i])
  found[#found + 1] = {'id', listed[i], 'heard', listed[i + 1], unpack(row)}
end
return reply{now_ms = clock(), members = found}
