-- Delete a delayed message, or the delayed add of a leased one. Reply: 1 if there was one, else 0.
local key = ARGV[2]
local item = look_up(key)
if not item or item.due <= now then return 0 end
if item.state == 'w' then
  remove_priority(key, item)
  redis.call('ZREM', BY_DUE, item.sequence .. key)
  redis.call('HDEL', ITEM, RECORD .. key, CONTENT .. key, UNANSWERED .. key)
  return 1
end
local again = item.state == 'a' and read_again(key)
if not again or again.due <= now then return 0 end
redis.call('HDEL', ITEM, AGAIN .. key)
item.state = 'l'
write_down(key, item)
return 1
