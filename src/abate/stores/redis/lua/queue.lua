-- The keys of one queue, and functions shared by its scripts; the layout is described in queue.py.
local ITEM, BY_DUE, BY_PRIORITY, LEASED, DEAD, META, WAKEUPS, TOKEN, LISTED = unpack(KEYS)

-- The time of a queue never goes back, even if the server's clock is set back or a failover leads to a clock that is
-- behind: while the clock is before the recorded mark, time continues from the mark at the clock's pace.
local mark, ahead, stepped
do
  local known = redis.call('HMGET', META, 'mark', 'ahead')
  mark, ahead = tonumber(known[1] or nil), tonumber(known[2] or nil) or 0
  -- another program may have written anything: ignore an instant more than ten years ahead
  if mark and not (mark < now + 3e8) then mark = nil end
  if not (ahead >= 0 and ahead < 3e8) then ahead = 0 end
  if mark and now < mark then
    stepped = now + ahead < mark
    if stepped then ahead = mark - now end
    now = math.max(mark, now + ahead)
  elseif ahead > 0 then
    stepped, ahead = true, 0
  end
end

-- Record the time, about once a second. Call this only in operations that need memory anyway, so that the others work
-- on a full server.
local function remember()
  if stepped or not mark or now > mark + 1 then
    redis.call('HSET', META, 'mark', exact(now), 'ahead', exact(ahead))
    stepped, mark = false, now
  end
end

-- The fields of a message in ITEM
local RECORD, CONTENT, AGAIN, WHY, UNANSWERED = 'r', 'c', 'a', 'w', 'u'

-- RECORD: "state sequence due priority receives token". Version 0.1 reads exactly these six, and treats a record with
-- more as invalid.
-- UNANSWERED: "sequence receives unanswered"; unanswered is the number of latest receives whose lease ran out. The
-- field exists if that is not 0. Version 0.1 does not update it, so it is valid only if its sequence and receives equal
-- those of the record.
local function read(record, noted)
  if not record then return nil end
  local state, sequence, due, priority, receives, token =
    string.match(record, '^(%a) (%d+) (%S+) (%d+) (%d+) (%d+)$')
  due, priority, receives = tonumber(due), tonumber(priority), tonumber(receives)
  -- another program may have written any number
  if not due or not (math.abs(due) < 1e18) or priority > MAX_PRIORITY or receives >= MAX_PRIORITY then return nil end
  if #sequence ~= 15 or #token > 18 then return nil end
  local unanswered = noted and string.match(
    noted, '^' .. sequence .. ' ' .. string.format('%.0f', receives) .. ' (%d+)$')
  return {
    state = state, sequence = sequence, due = due, priority = priority, receives = receives, token = token,
    unanswered = math.min(tonumber(unanswered or 0), MAX_PRIORITY - 1), noted = noted or nil,
  }
end

local function written(item)
  return table.concat({item.state, item.sequence, exact(item.due), item.priority, item.receives, item.token}, ' ')
end

-- Append the fields of an item to `fields`; delete an outdated UNANSWERED.
local function append(fields, key, item)
  fields[#fields + 1], fields[#fields + 2] = RECORD .. key, written(item)
  local note = item.unanswered > 0 and table.concat({item.sequence, item.receives, item.unanswered}, ' ') or nil
  if note == item.noted then return end
  if note then
    fields[#fields + 1], fields[#fields + 2] = UNANSWERED .. key, note
  else
    redis.call('HDEL', ITEM, UNANSWERED .. key)
  end
  item.noted = note
end

-- Return whether the item is leased.
local function held(item)
  return (item.state == 'l' or item.state == 'a') and item.due > now
end

-- Return the member of BY_PRIORITY: priority, due and sequence, encoded so that the bytes sort like the numbers.
local function place(key, item)
  return string.format('%010.0f', MAX_PRIORITY - item.priority) .. struct.pack('>d', item.due) .. item.sequence .. key
end

local function remove_priority(key, item)
  if item.priority > 0 then redis.call('ZREM', BY_PRIORITY, place(key, item)) end
end

local function look_up(key)
  return read(unpack(redis.call('HMGET', ITEM, RECORD .. key, UNANSWERED .. key)))
end

local function write_down(key, item, content)
  local fields = content and {CONTENT .. key, content} or {}
  append(fields, key, item)
  redis.call('HSET', ITEM, unpack(fields))
end

-- Store an item that was removed from BY_PRIORITY, at its new due; also the content if it has changed.
local function enter(key, item, content)
  redis.call('ZADD', BY_DUE, exact(item.due), item.sequence .. key)
  if item.priority > 0 then redis.call('ZADD', BY_PRIORITY, 0, place(key, item)) end
  write_down(key, item, content)
end

-- AGAIN: "due priority", a new line, and the content
local function read_again(key)
  local again = redis.call('HGET', ITEM, AGAIN .. key)
  local line_end = again and string.find(again, '\n', 1, true)
  if not line_end then return nil end
  local due, priority = string.match(string.sub(again, 1, line_end - 1), '^(%S+) (%d+)$')
  due, priority = tonumber(due), tonumber(priority)
  if not due or not (math.abs(due) < 1e18) or priority > MAX_PRIORITY then return nil end
  return {due = due, priority = priority, content = string.sub(again, line_end + 1)}
end

-- Return the instant at which the watcher wakes.
local function watched()
  return tonumber(redis.call('HGET', META, 'watch') or nil)
end

-- Wake up to `times` waiting clients for messages that are ready, or will be at `due`; skip this if the watcher wakes
-- by then. If the list is not empty, no client is blocked on it.
local function wake(due, times, watch)
  if due > now and watch and watch <= due and watch + WATCHER_LATE >= now then return end
  if redis.call('LLEN', WAKEUPS) == 0 then
    for _ = 1, math.min(times, BATCH) do redis.call('RPUSH', WAKEUPS, '') end
  end
end
