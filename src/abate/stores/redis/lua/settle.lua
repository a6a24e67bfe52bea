-- Carry out verdicts, each given as key, token, verdict and detail. Reply: the indexes of those whose lease was lost.
local lost, waiting, earliest = {}, 0, math.huge
local gone_fields, gone_members = {}, {}
local fields, records = {}, {}
for n = 2, #ARGV, 4 do fields[#fields + 1], fields[#fields + 2] = RECORD .. ARGV[n], UNANSWERED .. ARGV[n] end
local found = redis.call('HMGET', ITEM, unpack(fields))
for n = 1, #found, 2 do records[ARGV[2 * n]] = read(found[n], found[n + 1]) end

-- Return a message to the waiting ones.
local function wait(key, item, due, receives, content, unanswered)
  redis.call('ZREM', LEASED, item.sequence .. key)
  item.state, item.token, item.due, item.receives, item.unanswered = 'w', '0', due, receives, unanswered or 0
  enter(key, item, content)
  records[key] = nil
  waiting, earliest = waiting + 1, math.min(earliest, due)
end

for n = 2, #ARGV, 4 do
  local key, token, word, detail = ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3]
  local item = records[key]
  if not item or not held(item) or item.token ~= token then
    lost[#lost + 1] = (n - 2) / 4
  elseif word == 'done' and item.state == 'l' then
    remove_priority(key, item)
    for _, field in ipairs({RECORD, CONTENT, UNANSWERED}) do gone_fields[#gone_fields + 1] = field .. key end
    gone_members[#gone_members + 1] = item.sequence .. key
    records[key] = nil
  else
    remove_priority(key, item)
    local again = item.state == 'a' and read_again(key)
    local added, content = math.huge, again and again.content
    if again then  -- the added content replaces the old one, and can't be ready before now
      added = math.max(now, again.due)
      redis.call('HDEL', ITEM, AGAIN .. key)
    end
    if word == 'bury' and not again then
      redis.call('ZREM', BY_DUE, item.sequence .. key)
      redis.call('ZREM', LEASED, item.sequence .. key)
      redis.call('ZADD', DEAD, exact(now), item.sequence .. key)
      item.state, item.token, item.due, item.unanswered = 'd', '0', now, 0
      item.receives = math.max(1, item.receives)
      local dead = {WHY .. key, detail}
      append(dead, key, item)
      redis.call('HSET', ITEM, unpack(dead))
      records[key] = nil
    elseif (word == 'done' or word == 'bury') and again then  -- start over with what was added
      item.priority = again.priority
      wait(key, item, added, 0, content)
    elseif word == 'done' then  -- the state says that it was added again, but the added content is missing
      wait(key, item, now, 0)
    elseif word == 'again' then
      wait(key, item, math.min(now + tonumber(detail), added), 0, content)
    elseif word == 'back' then
      wait(key, item, math.min(now + tonumber(detail), added), math.max(1, item.receives), content)
    else  -- untouched
      wait(key, item, math.min(now + tonumber(detail), added), math.max(0, item.receives - 1), content, item.unanswered)
    end
  end
end
if #gone_members > 0 then
  redis.call('ZREM', BY_DUE, unpack(gone_members))
  redis.call('ZREM', LEASED, unpack(gone_members))
  redis.call('HDEL', ITEM, unpack(gone_fields))
end
if waiting > 0 then wake(earliest, waiting, watched()) end
return lost
