-- KEYS: the lease. Acquires or renews it for ARGV[2] ms; returns 1 on success, else 0.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
