-- Records objects that work names which is not final on the ledger. `release_work.lua` deletes the entries. Returns 0 if
-- the caller lost the leader lease.
if not holds(loop, lease) then return 0 end
local of_work = P .. 'run:needs:' .. work
for _, object in ipairs(objects) do
  local entry = object .. ':' .. work
  redis.call('ZADD', P .. 'run:needs', 0, entry)
  redis.call('SADD', of_work, entry)
end
return 1
