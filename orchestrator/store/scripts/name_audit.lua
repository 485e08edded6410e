-- Records that a verdict on a slot's work, or a dispute about it, names an audit file. `forget_slots.lua` deletes both
-- entries with the slot. Returns 0 if the slot is gone, or if the caller lost the leader lease.
if not holds(loop, lease) or redis.call('EXISTS', P .. 'run:slot:' .. slot) == 0 then return 0 end
redis.call('HSET', P .. 'run:audits', audit, slot)
redis.call('SADD', P .. 'run:audits:' .. slot, audit)
return 1
