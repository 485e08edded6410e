local lengths = {}
for i, name in ipairs(names) do lengths[i] = #name end
return lengths
