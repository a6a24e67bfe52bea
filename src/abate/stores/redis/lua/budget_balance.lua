-- Return the deposits and withdrawals in the window.
read_slots()
local deposits, withdrawals = counted()
return {string.format('%.0f', deposits), string.format('%.0f', withdrawals)}
