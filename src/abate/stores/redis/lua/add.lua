-- Add messages with different keys: all, or none if those that begin to wait don't fit into the capacity. Arguments:
-- the options, then the key and content of each message. Reply: for each 1 if its key is new and 0 if not; -1 if the
-- queue is full.
local priority, due = tonumber(ARGV[2]), now + tonumber(ARGV[3])
local revive, capacity, name = ARGV[4] == '1', tonumber(ARGV[5]), ARGV[6]
local FIRST_KEY, CHUNK = 7, 2000  -- Lua can't pass more than some thousands of arguments
local count = (#ARGV - FIRST_KEY + 1) / 2
local answer, items = {}, {}

local started, unknown = 0, 0
for first = 0, count - 1, CHUNK do
  local fields = {}
  local last = math.min(first + CHUNK, count) - 1
  for n = first, last do
    local key = ARGV[FIRST_KEY + 2 * n]
    fields[#fields + 1], fields[#fields + 2] = RECORD .. key, UNANSWERED .. key
  end
  local found = redis.call('HMGET', ITEM, unpack(fields))
  for n = first, last do
    local item = read(found[2 * (n - first) + 1], found[2 * (n - first) + 2])
    items[n] = item
    if not item then
      unknown = unknown + 1
    elseif item.state == 'd' and revive then
      started = started + 1
    end
  end
end
started = started + unknown
if capacity and started > 0 then
  local waiting = redis.call('ZCARD', BY_DUE) - redis.call('ZCOUNT', LEASED, '(' .. exact(now), '+inf')
  if waiting + started > capacity then return -1 end
end

-- Messages with new keys are written together.
local sequence = unknown > 0 and redis.call('HINCRBY', META, 'sequence', unknown) - unknown
if sequence == 0 and LISTED then redis.call('SADD', LISTED, name) end
local dues, places, fields, shown_due = {}, {}, {}, exact(due)

local function write_new()
  if #dues == 0 then return end
  redis.call('ZADD', BY_DUE, unpack(dues))
  if #places > 0 then redis.call('ZADD', BY_PRIORITY, unpack(places)) end
  redis.call('HSET', ITEM, unpack(fields))
  dues, places, fields = {}, {}, {}
end

local waiting, earliest = 0, math.huge
for n = 0, count - 1 do
  local key, content, item = ARGV[FIRST_KEY + 2 * n], ARGV[FIRST_KEY + 2 * n + 1], items[n]
  local new = 0
  if not item then
    sequence = sequence + 1
    local shown = string.format('%015.0f', sequence)
    dues[#dues + 1], dues[#dues + 2] = shown_due, shown .. key
    if priority > 0 then
      places[#places + 1], places[#places + 2] = 0, place(key, {priority = priority, due = due, sequence = shown})
    end
    local at = #fields
    fields[at + 1], fields[at + 2] = CONTENT .. key, content
    fields[at + 3], fields[at + 4] = RECORD .. key, 'w ' .. shown .. ' ' .. shown_due .. ' ' .. priority .. ' 0 0'
    if #dues >= CHUNK then write_new() end
    new, waiting, earliest = 1, waiting + 1, math.min(earliest, due)
  elseif item.state == 'd' then
    if revive then
      redis.call('ZREM', DEAD, item.sequence .. key)
      redis.call('HDEL', ITEM, WHY .. key)
      item.state, item.due, item.priority, item.receives, item.unanswered = 'w', due, priority, 0, 0
      enter(key, item, content)
      new, waiting, earliest = 1, waiting + 1, math.min(earliest, due)
    end
  elseif held(item) then
    -- leased: keep the new content in AGAIN. If the item returns without being done, it has the higher priority of both.
    local again = item.state == 'a' and read_again(key)
    remove_priority(key, item)
    item.state, item.priority = 'a', math.max(item.priority, priority)
    enter(key, item)
    local again_due, again_priority = due, priority
    if again then
      again_due, again_priority = math.min(due, again.due), math.max(priority, again.priority)
    end
    redis.call('HSET', ITEM, AGAIN .. key, exact(again_due) .. ' ' .. again_priority .. '\n' .. content)
    new = again and 0 or 1
  else
    -- waiting, or its lease has run out and ends here
    remove_priority(key, item)
    if item.state ~= 'w' then
      redis.call('ZREM', LEASED, item.sequence .. key)
      redis.call('HDEL', ITEM, AGAIN .. key)
      if item.receives > 0 then item.unanswered = item.unanswered + 1 else item.receives = 1 end
    end
    item.state, item.token = 'w', '0'
    item.due, item.priority = math.min(item.due, due), math.max(item.priority, priority)
    enter(key, item, content)
    waiting, earliest = waiting + 1, math.min(earliest, item.due)
  end
  answer[n + 1] = new
end
write_new()
if waiting > 0 then
  remember()
  wake(earliest, waiting, earliest > now and watched())
end
return answer
