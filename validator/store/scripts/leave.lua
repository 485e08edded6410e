-- A member goes: nobody waits for it. ARGV: member
local P, me = KEYS[1], ARGV[1]
redis.call('ZREM', P .. 'members', me)
redis.call('ZREM', P .. 'well', me)
redis.call('DEL', P .. 'member:' .. me)
return 1
