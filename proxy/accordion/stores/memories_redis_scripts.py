"""The keys of a tenant's memories in Redis or Valkey, and the Lua scripts that change them.

A tenant has sixteen keys, `accordion:{memories/<tenant>}#memory:<name>`, all in one slot of a cluster:

    heads      hash  a memory's id: its row and its revision. Rows count up from 1 and are never reused
    values     hash  row: the memory (msgpack);  tokens  hash  row: the embedder's tokens
    rows       hash  chunk: the entry of each row for filters and ranking
    words      hash  stem: its posting list;  labels  hash  topic, tag, entity, project or conversation: its rows
    vectors    hash  embedder, length and chunk: the vectors with their rows
    places     hash  row: its stems, its labels and the kind of its vector, for its removal from them
    names      hash  an entity's key and type: its name;  entities  sorted set  the same by name
    relations  hash  number: the relation (msgpack);  numbers  hash  ends, type and memory: the number
    ends       hash  an entity (`e:`), a memory (`m:`) or nothing (all): numbers of relations
    markers    hash;  counters  hash  the last row and number, and how many changes there were
    veil       hash  `secret`: the sealed secret of names and values (see sealed_names.py), if there is one

Lists are packed: entries of equal width that begin with the row (or number; four bytes, little-endian), in that order.
So a list can be read as a whole, appended to, and searched by bisection. Lists of rows and vectors are split into
chunks, so that a write copies little.
"""

from __future__ import annotations

from typing import Final

from accordion.archive.artifacts import tenant_name
from accordion.model.ports import Key
from accordion.stores.redis_keys import shard_tag
from accordion.stores.redis_scripts import Script

NAMES: Final = (
    "heads",
    "values",
    "tokens",
    "rows",
    "words",
    "labels",
    "vectors",
    "places",
    "names",
    "entities",
    "relations",
    "numbers",
    "ends",
    "markers",
    "counters",
    "veil",
)

ROW_BYTES, POSTING_BYTES = 17, 10
"""Bytes of an entry in `rows` (row, words, `created`, type) and in a posting list (row, counts by column)."""


def tenant_keys(tenant_key: bytes) -> dict[str, bytes]:
    """Returns a tenant's keys by name, in the order of `NAMES`."""
    prefix = shard_tag(Key(f"memories/{tenant_name(tenant_key)}", "")) + b"#memory:"
    return {name: prefix + name.encode() for name in NAMES}


_HEAD: Final = (
    "local " + ", ".join(NAMES) + " = unpack(KEYS)\n"
    f"local row_bytes, posting_bytes = {ROW_BYTES}, {POSTING_BYTES}\n"
    "local call = redis.call\n"
    # A change that was packed with another secret must not be written.
    "if (call('HGET', veil, 'secret') or '') ~= ARGV[2] then return -1 end\n"
)

# Nothing may fail after the first write, because an aborted script is not undone.
_BODY: Final = """
-- ARGV: the change (msgpack): require {{id, revision}}, markers {{name, value}}, delete {id}, put {{id, revision,
-- value, tokens, its entry in rows without the row, {{stem, entry}}, {label}, kind of vector, vector}},
-- entities {{key, type, value}}, relations {{unique, {end}, value}}; the secret that it was packed with.
-- Returns 1 or 0 for each entity: whether it is new; what is in conflict, as a string; -1: there is another secret.
local change = cmsgpack.unpack(ARGV[1])

local function chunk(row, size) return tostring(math.floor(row / size)) end
local function vector_field(kind, row) return kind .. '.' .. chunk(row, 256) end

-- What lists lose and gain waits here, so that each is copied once a change and not once a memory.
local waiting = {}
local function list(key, field)
  waiting[key] = waiting[key] or {}
  waiting[key][field] = waiting[key][field] or {gone = {}, fresh = {}}
  return waiting[key][field]
end
local function append(key, field, entry) table.insert(list(key, field).fresh, entry) end
local function drop(key, field, row, width)
  local held = list(key, field)
  held.width = width
  table.insert(held.gone, row)
end

local function without(held, gone, width)
  table.sort(gone)
  local kept, from, low = {}, 1, 0
  for _, row in ipairs(gone) do
    local high = #held / width - 1
    while low <= high do
      local middle = math.floor((low + high) / 2)
      local found = struct.unpack('<I4', held, middle * width + 1)
      if found > row then high = middle - 1 else low = middle + 1 end
      if found == row then
        table.insert(kept, held:sub(from, middle * width))
        from = low * width + 1
        break
      end
    end
  end
  table.insert(kept, held:sub(from))
  return table.concat(kept)
end
local function settle()
  for key, fields in pairs(waiting) do
    for field, list in pairs(fields) do
      local held = call('HGET', key, field) or ''
      if #list.gone > 0 then held = without(held, list.gone, list.width) end
      held = held .. table.concat(list.fresh)
      if held == '' then call('HDEL', key, field) else call('HSET', key, field, held) end
    end
  end
  waiting = {}
end

-- Takes a memory out of everything but the relations. Returns the labels that it had.
local function remove(id)
  local head = call('HGET', heads, id)
  if not head then return {} end
  local row = tonumber(string.match(head, '^%d+'))
  local place = cmsgpack.unpack(call('HGET', places, row))
  for _, stem in ipairs(place[1]) do drop(words, stem, row, posting_bytes) end
  for _, label in ipairs(place[2]) do drop(labels, label, row, 4) end
  if place[4] > 0 then drop(vectors, vector_field(place[3], row), row, place[4] + 4) end
  drop(rows, chunk(row, 1024), row, row_bytes)
  call('HDEL', heads, id)
  for _, key in ipairs({values, tokens, places}) do call('HDEL', key, row) end
  return place[2]
end

local function unrelate(field)
  local held = call('HGET', ends, field) or ''
  for at = 1, #held, 4 do
    local number = struct.unpack('<I4', held, at)
    local held_relation = call('HGET', relations, number)
    if held_relation then
      local relation = cmsgpack.unpack(held_relation:sub(5, 4 + struct.unpack('<I4', held_relation)))
      call('HDEL', relations, number)
      call('HDEL', numbers, relation[1])
      for _, name in ipairs(relation[2]) do drop(ends, name, number, 4) end
    end
  end
end

for at, wanted in ipairs(change.require) do
  local head = call('HGET', heads, wanted[1])
  local revision = head and string.match(head, '^%d+ (.*)$')
  if (revision or '') ~= wanted[2] or (revision and wanted[2] == '') then
    return 'memory ' .. at
  end
end
local named = {}
for at, marker in ipairs(change.markers) do
  if named[marker[1]] or call('HEXISTS', markers, marker[1]) == 1 then return 'marker ' .. at end
  named[marker[1]] = true
end

call('HINCRBY', counters, 'change', 1)
for _, marker in ipairs(change.markers) do call('HSET', markers, marker[1], marker[2]) end
local labelled = {}
for _, id in ipairs(change.delete) do
  for _, label in ipairs(remove(id)) do labelled[label] = true end
  unrelate('m:' .. id)
end
settle()
for label in pairs(labelled) do
  if label:sub(1, 2) == 'e:' and call('HEXISTS', labels, label) == 0 then
    local key = label:sub(3)
    unrelate(label)
    for _, entity in ipairs(call('ZRANGEBYLEX', entities, '[' .. key .. '\\0', '(' .. key .. '\\1')) do
      call('ZREM', entities, entity)
      call('HDEL', names, entity)
    end
  end
end
for _, memory in ipairs(change.put) do
  remove(memory[1])
  local row = call('HINCRBY', counters, 'row', 1)
  local lead = struct.pack('<I4', row)
  local stems = {}
  for at, word in ipairs(memory[6]) do
    stems[at] = word[1]
    append(words, word[1], lead .. word[2])
  end
  for _, label in ipairs(memory[7]) do append(labels, label, lead) end
  if memory[9] ~= '' then append(vectors, vector_field(memory[8], row), lead .. memory[9]) end
  append(rows, chunk(row, 1024), lead .. memory[5])
  call('HSET', heads, memory[1], row .. ' ' .. memory[2])
  call('HSET', values, row, memory[3])
  call('HSET', tokens, row, memory[4])
  call('HSET', places, row, cmsgpack.pack({stems, memory[7], memory[8], #memory[9]}))
end
local fresh = {}
for at, entity in ipairs(change.entities) do
  local member = entity[1] .. '\\0' .. entity[2]
  fresh[at] = call('HSETNX', names, member, entity[3])
  if fresh[at] == 1 then call('ZADD', entities, 0, member) end
end
for _, relation in ipairs(change.relations) do
  if call('HEXISTS', numbers, relation[1]) == 0 then
    local number = call('HINCRBY', counters, 'relation', 1)
    call('HSET', numbers, relation[1], number)
    call('HSET', relations, number, relation[3])
    for _, name in ipairs(relation[2]) do append(ends, name, struct.pack('<I4', number)) end
  end
end
settle()
return fresh
"""

WRITE = Script(_HEAD + _BODY)

REWRITE = Script(
    _HEAD
    + """
-- Puts all that there is under another secret. ARGV besides: the new secret, how many changes there were when it was
-- read. Rows count on, so that nobody who chose a row before reads another memory there.
if (call('HGET', counters, 'change') or '0') ~= ARGV[4] then return -1 end
for at, key in ipairs(KEYS) do
  if key ~= counters then call('UNLINK', key) end
end
call('HSET', veil, 'secret', ARGV[3])
"""
    + _BODY
)

GET = Script(
    """
-- KEYS: heads, values, veil. ARGV: id... Returns the secret, and the memories, each or nil.
local found = {redis.call('HGET', KEYS[3], 'secret')}
for at, id in ipairs(ARGV) do
  local head = redis.call('HGET', KEYS[1], id)
  found[at + 1] = head and redis.call('HGET', KEYS[2], string.match(head, '^%d+'))
end
return found
"""
)

ERASE = Script(
    """
-- KEYS: all of a tenant's, heads first. Returns how many memories there were.
local count = redis.call('HLEN', KEYS[1])
redis.call('UNLINK', unpack(KEYS))
return count
"""
)
