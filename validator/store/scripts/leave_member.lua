-- Removes a member that stops, so that no other member leaves work to it.
redis.call('ZREM', P .. 'members', member)
redis.call('ZREM', P .. 'well', member)
redis.call('DEL', P .. 'member:' .. member)
return 1
