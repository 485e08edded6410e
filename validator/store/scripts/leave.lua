-- Removes a member, so that no other waits for it.
redis.call('ZREM', P .. 'members', member)
redis.call('ZREM', P .. 'well', member)
redis.call('DEL', P .. 'member:' .. member)
return 1
