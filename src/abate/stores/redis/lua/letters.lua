-- The dead letters, those that died last first: up to so many, behind one of them ('' for the first ones) that died at an
-- instant. The answer: the last that was looked at and when it died ('' where there are no more), and for each letter
-- its key, content, why, receives and when it died.
local most, last = tonumber(ARGV[2]), ARGV[3]
local start = 0
if last ~= '' then
  local rank = redis.call('ZREVRANK', DEAD, last)
  -- one that is not there any more was at most behind all that died later
  start = rank and rank + 1 or redis.call('ZCOUNT', DEAD, '(' .. ARGV[4], '+inf')
end
local members = redis.call('ZRANGE', DEAD, start, start + most - 1, 'REV', 'WITHSCORES')
local more = #members == 2 * most
local answer = {more and members[#members - 1] or '', more and members[#members] or ''}
for n = 1, #members, 2 do
  local key = string.sub(members[n], 16)
  local item = look_up(key)
  if item then
    local found = redis.call('HMGET', ITEM, CONTENT .. key, WHY .. key)
    local content, why = found[1] and string.sub(found[1], 1, LONGEST), found[2] and string.sub(found[2], 1, LONGEST)
    for _, part in ipairs({key, content, why, item.receives, exact(item.due)}) do answer[#answer + 1] = part end
  end
end
return answer
