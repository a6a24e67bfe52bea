-- Return dead letters, latest first. ARGV: the maximum number, the last letter of the page before ('' for the first
-- page), and when it died. Reply: the last letter read and when it died ('' if there are no more), and for each letter
-- its key, content, reason, receives and time of death.
local most, last = tonumber(ARGV[2]), ARGV[3]
local start = 0
if last ~= '' then
  local rank = redis.call('ZREVRANK', DEAD, last)
  -- if that letter is gone, continue after all letters that died later
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
    local content, why = found[1] and string.sub(found[1], 1, MAX_LETTER_BYTES), found[2] and string.sub(found[2], 1, MAX_LETTER_BYTES)
    for _, part in ipairs({key, content, why, item.receives, exact(item.due)}) do answer[#answer + 1] = part end
  end
end
return answer
