-- Redrive or purge dead letters, the oldest first: those of the given keys, or a batch of those that died up to an
-- instant ('': up to the newest dead letter now). Reply: the number changed, the number read, and that instant.
local purge = ARGV[2] == 'purge'
local died_by = tonumber(ARGV[3]) or tonumber(redis.call('ZRANGE', DEAD, -1, -1, 'WITHSCORES')[2]) or now
local keys = {}
if ARGV[4] then
  for n = 4, #ARGV do keys[#keys + 1] = ARGV[n] end
else
  local members = redis.call('ZRANGE', DEAD, '-inf', exact(died_by), 'BYSCORE', 'LIMIT', 0, BATCH)
  for n, member in ipairs(members) do
    keys[n] = string.sub(member, 16)
    redis.call('ZREM', DEAD, member)
  end
end
local many = 0
for _, key in ipairs(keys) do
  local item = look_up(key)
  if item and item.state == 'd' then
    many = many + 1
    redis.call('ZREM', DEAD, item.sequence .. key)
    redis.call('HDEL', ITEM, WHY .. key)
    if purge then
      redis.call('HDEL', ITEM, RECORD .. key, CONTENT .. key, UNANSWERED .. key)
    else
      -- a new sequence: of messages that are due at the same instant, the lowest sequence is received first
      item.sequence = string.format('%015.0f', redis.call('HINCRBY', META, 'sequence', 1))
      item.state, item.due, item.receives, item.unanswered = 'w', now, 0, 0
      enter(key, item)
    end
  end
end
if many > 0 and not purge then wake(now, many) end
return {many, #keys, exact(died_by)}
