-- Deletes the entries of work that is final, or not on the ledger any more. Returns 0 if the caller lost the leader lease.
if not holds(loop, lease) then return 0 end
local of_work = P .. 'run:needs:' .. work
for _, entry in ipairs(redis.call('SMEMBERS', of_work)) do redis.call('ZREM', P .. 'run:needs', entry) end
redis.call('DEL', of_work)
return 1
