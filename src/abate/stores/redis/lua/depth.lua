-- Count the messages: ready, delayed, leased, dead; and the seconds since the oldest became ready ('' if none is).
local ready = redis.call('ZCOUNT', BY_DUE, '-inf', exact(now))
local leased = redis.call('ZCOUNT', LEASED, '(' .. exact(now), '+inf')
local first = redis.call('ZRANGE', BY_DUE, 0, 0, 'WITHSCORES')
local age = ready > 0 and exact(now - tonumber(first[2])) or ''
return {ready, redis.call('ZCARD', BY_DUE) - ready - leased, leased, redis.call('ZCARD', DEAD), age}
