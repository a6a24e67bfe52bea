-- Lease up to `most` ready messages. After the first `counted` only those that were never received: their receive counts
-- when they are settled, so until then `receives` is 0. Reply: the seconds until the queue should be read again ('' if unknown), the
-- number of invalid entries removed (strays), and for each message its key, content, receives, token, and the number
-- of preceding receives without a verdict.
local most, counted, lease = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local waiter, left = ARGV[5] or '', tonumber(ARGV[6] or 0)
local known = redis.call('HMGET', META, 'turns', 'watch', 'watcher')
local turns, watch, watching = tonumber(known[1] or 0), tonumber(known[2] or nil), known[3] == waiter
if not (turns and turns >= 0 and turns < FAIRNESS_TURNS) then turns = 0 end  -- another program wrote an invalid count
turns = math.floor(turns)
local SEQUENCE = 15
if stepped then remember() end  -- otherwise time would stand still while no message is found
local PLACE = 18  -- bytes before the sequence in BY_PRIORITY

local function oldest_first(count)
  return redis.call('ZRANGE', BY_DUE, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, count)
end

-- Pick ready messages by priority, highest first; then those without a priority, from BY_DUE.
local function highest_first(first)
  local picked, taken, until_now = {}, {}, struct.pack('>d', now) .. '\255'
  for _ = 1, MAX_PRIORITIES do
    local priority = string.sub(first, 1, 10)
    local ready = redis.call(
      'ZRANGE', BY_PRIORITY, '[' .. priority, '[' .. priority .. until_now, 'BYLEX', 'LIMIT', 0, most - #picked)
    for _, stands in ipairs(ready) do
      local member = string.sub(stands, PLACE + 1)
      picked[#picked + 1] = member
      taken[member] = stands
    end
    first = redis.call('ZRANGE', BY_PRIORITY, '(' .. priority .. '\255', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if #picked >= most or not first then break end
  end
  if #picked < most then
    for _, member in ipairs(oldest_first(most)) do
      if not taken[member] and #picked < most then picked[#picked + 1] = member end
    end
  end
  return picked, taken
end

-- One of eight turns goes to the oldest message. Turns count only if there are priorities: otherwise the first is the
-- oldest.
local function pick()
  local first = redis.call('ZRANGE', BY_PRIORITY, '-', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  if not first then return oldest_first(most), {} end
  local highest, places = highest_first(first)
  if #highest == 0 then return highest, places end
  redis.call('HSET', META, 'turns', (turns + #highest) % FAIRNESS_TURNS)
  if turns + #highest < FAIRNESS_TURNS then return highest, places end
  local oldest, picked, taken = oldest_first(most), {}, {}
  local at = {[highest] = 1, [oldest] = 1}
  for turn = turns + 1, turns + #highest do
    local source = turn % FAIRNESS_TURNS == 0 and oldest or highest
    while taken[source[at[source]]] do at[source] = at[source] + 1 end
    picked[#picked + 1] = source[at[source]]
    taken[source[at[source]]] = true
  end
  return picked, places
end

-- Bury a message whose record is invalid.
local function bury_unreadable(key, member)
  redis.call('ZREM', BY_DUE, member)
  redis.call('ZREM', LEASED, member)
  local sequence = string.format('%015.0f', redis.call('HINCRBY', META, 'sequence', 1))
  redis.call('ZADD', DEAD, exact(now), sequence .. key)
  redis.call(
    'HSET', ITEM, RECORD .. key, table.concat({'d', sequence, exact(now), 0, 0, 0}, ' '),
    WHY .. key, '["unreadable", "its record is not what a queue writes", ""]')
  redis.call('HDEL', ITEM, UNANSWERED .. key, AGAIN .. key)
end

local members, places = pick()
local answer, strays = {}, 0

if #members > 0 then
  local keys, fields = {}, {}
  for n, member in ipairs(members) do
    keys[n] = string.sub(member, SEQUENCE + 1)
    fields[3 * n - 2], fields[3 * n - 1], fields[3 * n] = RECORD .. keys[n], UNANSWERED .. keys[n], CONTENT .. keys[n]
  end
  local found = redis.call('HMGET', ITEM, unpack(fields))
  -- tokens also follow the clock, so that a flushed store, or a replica that was behind, does not repeat them
  local last = tonumber(redis.call('GET', TOKEN) or 0)
  if not (last and last >= 0 and last < 2 ^ 53) then last = 0 end  -- another program wrote an invalid token
  local token = math.max(last, math.min(math.floor(now * 1e6), 2 ^ 52))
  local due = exact(now + lease)
  local dues, written_down = {}, {}
  for n, key in ipairs(keys) do
    local item, content = read(found[3 * n - 2], found[3 * n - 1]), found[3 * n]
    if not item and found[3 * n - 2] and content then
      -- the message has content, but its record is invalid: bury it unchanged
      strays = strays + 1
      bury_unreadable(key, members[n])
      if places[members[n]] then redis.call('ZREM', BY_PRIORITY, places[members[n]]) end
    elseif not item or item.sequence .. key ~= members[n] or item.state == 'd' then
      strays = strays + 1  -- the item is missing: evicted, or deleted by another program
      redis.call('ZREM', BY_DUE, members[n])
      redis.call('ZREM', LEASED, members[n])
      if places[members[n]] then redis.call('ZREM', BY_PRIORITY, places[members[n]]) end
    else
      counted = counted - 1
      if counted < 0 and (item.state ~= 'w' or item.receives > 0) then break end  -- in order: none behind it
      local again = item.state == 'a' and read_again(key)
      if again then  -- it was added during its last lease, which ran out
        content = again.content
        redis.call('HSET', ITEM, CONTENT .. key, content)
        redis.call('HDEL', ITEM, AGAIN .. key)
      end
      remove_priority(key, item)
      if item.state ~= 'w' and item.receives > 0 then item.unanswered = item.unanswered + 1 end  -- its lease ran out
      token = token + 1
      local receives = item.receives + 1
      item.state, item.due, item.token = 'l', now + lease, string.format('%.0f', token)
      if counted >= 0 then item.receives = receives end
      if item.priority > 0 then redis.call('ZADD', BY_PRIORITY, 0, place(key, item)) end
      dues[#dues + 1], dues[#dues + 2] = due, members[n]
      append(written_down, key, item)
      for _, part in ipairs({key, content, receives, item.token, item.unanswered}) do answer[#answer + 1] = part end
    end
  end
  if #dues > 0 then
    redis.call('ZADD', BY_DUE, unpack(dues))
    redis.call('ZADD', LEASED, unpack(dues))
    redis.call('HSET', ITEM, unpack(written_down))
    redis.call('SET', TOKEN, string.format('%.0f', token))
    remember()
  end
end

local pause = ''
local head = tonumber(redis.call('ZRANGE', BY_DUE, 0, 0, 'WITHSCORES')[2])
if #answer > 0 or (watching and left <= 0) then
  -- this client stops waiting: release the role of watcher, and wake another client for the next message
  if watching then
    redis.call('HDEL', META, 'watch', 'watcher')
    watch = nil
  end
  if head then wake(head, 1, watch) end
elseif left > 0 and strays == 0 then
  if head and (watching or not watch or head < watch or watch + WATCHER_LATE < now) then
    redis.call('HSET', META, 'watch', exact(head), 'watcher', waiter)
    remember()
    pause = exact(head - now)
  elseif head then  -- another client is the watcher; if it is late, the others wake at random times to replace it
    pause = exact(head - now + WATCHER_LATE * (1 + tonumber(ARGV[7])))
  end
  redis.call('DEL', WAKEUPS)  -- nothing is ready: discard pending wake-ups, which would be spurious
end
return {pause, strays, unpack(answer)}
