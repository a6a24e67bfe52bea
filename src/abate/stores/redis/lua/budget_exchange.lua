-- Deposit, take back the newest withdrawals, and withdraw up to `want`. Reply: the number of granted withdrawals.
local earned, per, reserved, share = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local deposits, want, returned = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local paid, withdrawn = settle_up(returned)
local granted = math.max(0, math.min(want, paid_for(paid + deposits, withdrawn, earned, per, reserved, share)))
count(deposits, granted)
return granted
