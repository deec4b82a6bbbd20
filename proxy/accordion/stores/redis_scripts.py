"""The Lua scripts of the Redis store, for changes of several keys in one step.

They change a value together with its index, and the entries of a log together with its length and expiry. The server
runs no other command while a script runs. All keys of one run are in one slot. Needs Redis 7.0 or any Valkey.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script: its text, and the SHA-1 by which the server calls it again."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


# An index expires with the last of its values. Each new name removes up to two names whose values have expired, so that
# an index that is never scanned does not grow for ever.
_STORE = """
local function store(key, index, prefix, name, value, ttl)
  local is_new_index = redis.call('EXISTS', index) == 0
  if ttl == '' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PX', ttl) end
  local added = redis.call('ZADD', index, 0, name)
  if ttl == '' then redis.call('PERSIST', index)
  elseif is_new_index then redis.call('PEXPIRE', index, ttl)
  else redis.call('PEXPIRE', index, ttl, 'GT') end
  if added == 1 and not is_new_index then
    for _, other in ipairs(redis.call('ZRANDMEMBER', index, 2)) do
      if redis.call('EXISTS', prefix .. other) == 0 then redis.call('ZREM', index, other) end
    end
  end
end
"""

PUT = Script(
    _STORE
    + """
-- KEYS: index, value... ARGV: prefix of the collection's value keys, (name, value, ttl in ms or '')...
for i = 2, #KEYS do
  local at = 3 * i - 4
  store(KEYS[i], KEYS[1], ARGV[1], ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
"""
)

PUT_IF_ABSENT = Script(
    _STORE
    + """
-- KEYS: index, value. ARGV: prefix, name, value, ttl. Returns the existing value, or nil.
local existing = redis.call('GET', KEYS[2])
if existing then return existing end
store(KEYS[2], KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return false
"""
)

DELETE = Script(
    """
-- KEYS: index, (value, log)... ARGV: name... Returns the number of names that had a value or a log.
local count = 0
for i = 1, #ARGV do
  if redis.call('UNLINK', KEYS[2 * i], KEYS[2 * i + 1]) > 0 then count = count + 1 end
  redis.call('ZREM', KEYS[1], ARGV[i])
end
return count
"""
)

FORGET = Script(
    """
-- KEYS: index, value... ARGV: name... Drops the names whose values have expired.
for i = 1, #ARGV do
  if redis.call('EXISTS', KEYS[i + 1]) == 0 then redis.call('ZREM', KEYS[1], ARGV[i]) end
end
"""
)

# Redis counts the second part of a stream's entry ids from 1, and goes on counting after entries were trimmed.
APPEND = Script(
    """
-- KEYS: log. ARGV: keep or '', ttl in ms or '', value... Returns the id of the last entry.
local id
for i = 3, #ARGV do id = redis.call('XADD', KEYS[1], '0-*', 'v', ARGV[i]) end
if ARGV[1] ~= '' then redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', ARGV[1]) end
if ARGV[2] == '' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return id
"""
)

UNLOCK = Script(
    """
-- KEYS: lock. ARGV: token.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
)
