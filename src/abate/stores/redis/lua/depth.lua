-- How many there are: ready, delayed, leased, dead, and for how long the oldest has been ready ('' where none is).
local ready = redis.call('ZCOUNT', LINE, '-inf', exact(now))
local leased = redis.call('ZCOUNT', LEASED, '(' .. exact(now), '+inf')
local first = redis.call('ZRANGE', LINE, 0, 0, 'WITHSCORES')
local age = ready > 0 and exact(now - tonumber(first[2])) or ''
return {ready, redis.call('ZCARD', LINE) - ready - leased, leased, redis.call('ZCARD', DEAD), age}
