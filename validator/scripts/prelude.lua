-- What every script begins with. Time is Redis' own: hosts that share it need not agree on theirs.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- How often each member failed at an item, and who gave it up; each as a table by member.
local function told_of(item)
  local fails, gave, all = {}, {}, redis.call('HGETALL', item)
  for i = 1, #all, 2 do
    local what, member = string.match(all[i], '^(%a+):(%w+)$')
    if what == 'fails' then fails[member] = tonumber(all[i + 1]) end
    if what == 'gave' then gave[member] = true end
  end
  return fails, gave
end
-- Whether somebody else is at work here, and has not given it up. Members count for `silence` ms after their last sign.
local function others_left(P, me, gave, silence)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'well', '(' .. (clock() - silence), '+inf')) do
    if member ~= me and not gave[member] then return true end
  end
  return false
end
