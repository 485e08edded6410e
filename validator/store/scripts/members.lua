-- Who shares this Redis; answers {now (ms), {member, last sign (ms), fields...}, ...}.
local P = KEYS[1]
local found, listed = {clock()}, redis.call('ZRANGE', P .. 'members', 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  found[#found + 1] = {listed[i], listed[i + 1], unpack(redis.call('HGETALL', P .. 'member:' .. listed[i]))}
end
return found
