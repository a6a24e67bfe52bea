-- The counts of a budget: SLOT holds, by the start of a slot, "forgotten deposits withdrawals". The rules are those of
-- abate.stores.budget; fractions are computed here as quotient and remainder, since a product of large numbers would
-- not be exact in floats.
local SLOT = KEYS[1]
local window = tonumber(ARGV[2])
local width = window / SLOTS
local here = math.floor(now / width)
local begins, since, forgotten = here * width, (here - SLOTS + 1) * width, (here + SLOTS + 1) * width

local slots, strays = {}, {}
local function read_slots()
  local found = redis.call('HGETALL', SLOT)
  for n = 1, #found, 2 do
    local end_, deposits, withdrawals = string.match(found[n + 1], '^(%S+) (%d+) (%d+)$')
    local slot = {
      name = found[n], begins = sound(found[n]), forgotten = sound(end_),
      deposits = sound(deposits), withdrawals = sound(withdrawals),
    }
    if slot.begins and slot.forgotten and slot.deposits and slot.withdrawals then
      slots[#slots + 1] = slot
    else
      strays[#strays + 1] = found[n]
    end
  end
end

local function counted()
  local deposits, withdrawals = 0, 0
  for _, slot in ipairs(slots) do
    if slot.begins >= since then
      deposits, withdrawals = deposits + slot.deposits, withdrawals + slot.withdrawals
    end
  end
  return deposits, withdrawals
end

local function write_slot(slot)
  redis.call('HSET', SLOT, slot.name, string.format(
    '%s %.0f %.0f', exact(slot.forgotten), slot.deposits, slot.withdrawals))
end

-- Take back the newest withdrawals. Return the deposits and withdrawals in the window.
local function settle_up(returned)
  read_slots()
  for _, name in ipairs(strays) do redis.call('HDEL', SLOT, name) end
  local kept = {}
  for _, slot in ipairs(slots) do
    -- a slot that begins more than a window ahead was written before the clock was set back
    if slot.forgotten <= now or slot.begins > begins + window then
      redis.call('HDEL', SLOT, slot.name)
    else
      kept[#kept + 1] = slot
    end
  end
  slots = kept
  table.sort(slots, function(one, other) return one.begins > other.begins end)
  for _, slot in ipairs(slots) do
    local back = slot.begins >= since and math.min(returned, slot.withdrawals) or 0
    if back > 0 then
      slot.withdrawals, returned = slot.withdrawals - back, returned - back
      write_slot(slot)
    end
  end
  return counted()
end

-- Add counts to the current slot, and let the key expire when the budget is no longer used.
local function count(deposits, withdrawals)
  local last, mine = forgotten, nil
  for _, slot in ipairs(slots) do
    last = math.max(last, slot.forgotten)
    if slot.begins == begins then mine = slot end
  end
  if deposits > 0 or withdrawals > 0 then
    mine = mine or {name = exact(begins), forgotten = forgotten, deposits = 0, withdrawals = 0}
    mine.forgotten = math.max(mine.forgotten, forgotten)
    mine.deposits = mine.deposits + math.min(deposits, MAX_PER_SLOT)
    mine.withdrawals = mine.withdrawals + math.min(withdrawals, MAX_PER_SLOT)
    write_slot(mine)
  end
  redis.call('EXPIRE', SLOT, math.ceil(math.min(last - now, MAX_KEPT_FOR)) + KEPT_FOR)
end

-- Return the withdrawals that are still allowed: floor(reserved / share + earned / per * deposits) - withdrawals
local function paid_for(deposits, withdrawals, earned, per, reserved, share)
  local rest = deposits % per
  local paid = (deposits - rest) / per * earned
  local rest_paid = rest * earned % per
  local rest_reserved = reserved % share
  paid = paid + (rest * earned - rest_paid) / per + (reserved - rest_reserved) / share
  if rest_paid * share + rest_reserved * per >= per * share then paid = paid + 1 end
  return paid - withdrawals
end
