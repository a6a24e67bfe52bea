-- Add a message. Reply: 1 if its key is new, 0 if not, -1 if the queue is full.
local key, content, name = ARGV[2], ARGV[3], ARGV[8]
local priority, due = tonumber(ARGV[4]), now + tonumber(ARGV[5])
local revive, capacity = ARGV[6] == '1', tonumber(ARGV[7])
local item = look_up(key)

local function full()
  return capacity and redis.call('ZCARD', BY_DUE) - redis.call('ZCOUNT', LEASED, '(' .. exact(now), '+inf') >= capacity
end

local new = 0
if not item then
  if full() then return -1 end
  local sequence = redis.call('HINCRBY', META, 'sequence', 1)
  if sequence == 1 and LISTED then redis.call('SADD', LISTED, name) end
  item = {
    state = 'w', sequence = string.format('%015.0f', sequence), due = due, priority = priority, receives = 0, token = '0',
    unanswered = 0,
  }
  new = 1
elseif item.state == 'd' then
  if not revive then return 0 end
  if full() then return -1 end
  redis.call('ZREM', DEAD, item.sequence .. key)
  redis.call('HDEL', ITEM, WHY .. key)
  item.state, item.due, item.priority, item.receives, item.unanswered = 'w', due, priority, 0, 0
  new = 1
elseif held(item) then
  -- leased: keep the new content in AGAIN. If the item returns without being done, it has the higher priority of both.
  local again = item.state == 'a' and read_again(key)
  remove_priority(key, item)
  item.state, item.priority = 'a', math.max(item.priority, priority)
  enter(key, item)
  if again then
    due, priority = math.min(due, again.due), math.max(priority, again.priority)
  end
  redis.call('HSET', ITEM, AGAIN .. key, exact(due) .. ' ' .. priority .. '\n' .. content)
  return again and 0 or 1
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
end
enter(key, item, content)
remember()
wake(item.due, 1, item.due > now and watched())
return new
