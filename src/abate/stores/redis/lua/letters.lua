-- The dead letters, those that died last first. For each: key, content, why, receives and when it died.
local answer = {}
for _, member in ipairs(redis.call('ZRANGE', DEAD, ARGV[2], ARGV[3], 'REV')) do
  local key = string.sub(member, 16)
  local item = look_up(key)
  if item then
    local found = redis.call('HMGET', ITEM, CONTENT .. key, WHY .. key)
    for _, part in ipairs({key, found[1], found[2], item.receives, exact(item.due)}) do answer[#answer + 1] = part end
  end
end
return answer
