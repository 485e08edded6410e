-- Returns time and signature of the newest statement of each node; empty texts if there is none.
local found = {}
for _, address in ipairs(nodes) do
  local held = newest(address, now_ms)
  found[#found + 1] = held and int(held.ms) .. ' ' .. held.signature or ''
end
return found
