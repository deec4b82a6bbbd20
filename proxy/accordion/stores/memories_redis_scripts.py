"""The keys of a tenant's memories in Redis or Valkey, and the Lua scripts that change them.

A tenant has sixteen keys, `accordion:{memories/<tenant>}#memory:<name>`, all in one slot of a cluster:

    heads      hash  a memory's id: its row and its revision. Rows count up from 1 and are never reused
    values     hash  row: the memory (msgpack);  tokens  hash  row: the embedder's tokens
    rows       hash  chunk: the entry of each row for filters and ranking
    words      hash  stem: its posting list;  labels  hash  topic, tag, entity, project or conversation: its rows
    vectors    hash  embedder, length and chunk: the vectors with their rows
    places     hash  row: the stems, labels and kind of vector in whose lists it is, for its removal from them
    names      hash  an entity's key and type: its name;  entities  sorted set  the same by name
    relations  hash  number: the relation (msgpack);  numbers  hash  ends, type and memory: the number
    ends       hash  an entity (`e:`), a memory (`m:`) or nothing (all): numbers of relations
    markers    hash;  counters  hash  the last row and number, and the number of changes
    veil       hash  `secret`: the sealed secret of names and values (see sealed_names.py), if there is one

Lists are packed: entries of equal width that begin with the row (or number; four bytes, little-endian), in that order.
So a list can be read as a whole, appended to, and searched by bisection. Lists of rows and vectors are split into
chunks, so that a write copies little.
"""

from __future__ import annotations

from typing import Final

from accordion.model.ports import Key
from accordion.model.tenant import TenantScope
from accordion.stores.redis import shard_tag
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


def tenant_keys(tenant: TenantScope) -> dict[str, bytes]:
    """Returns a tenant's keys by name, in the order of `NAMES`."""
    prefix = shard_tag(Key(f"memories/{tenant.archive_namespace}", "")) + b"#memory:"
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
-- Returns 1 or 0 for each entity (whether it is new); a conflict as a string; -1 if there is another secret.
local change = cmsgpack.unpack(ARGV[1])

local function chunk(row, size) return tostring(math.floor(row / size)) end
local function vector_field(kind, row) return kind .. '.' .. chunk(row, 256) end

-- The changes of lists are collected here, so that each list is copied once per change and not once per memory.
local list_changes = {}
local function changes_of(key, field)
  list_changes[key] = list_changes[key] or {}
  list_changes[key][field] = list_changes[key][field] or {removals = {}, additions = {}}
  return list_changes[key][field]
end
local function append(key, field, entry) table.insert(changes_of(key, field).additions, entry) end
local function drop(key, field, row, width)
  local changes = changes_of(key, field)
  changes.width = width
  table.insert(changes.removals, row)
end

local function without_rows(list, removals, width)
  table.sort(removals)
  local pieces, from, low = {}, 1, 0
  for _, row in ipairs(removals) do
    local high = #list / width - 1
    while low <= high do
      local middle = math.floor((low + high) / 2)
      local middle_row = struct.unpack('<I4', list, middle * width + 1)
      if middle_row > row then high = middle - 1 else low = middle + 1 end
      if middle_row == row then
        table.insert(pieces, list:sub(from, middle * width))
        from = low * width + 1
        break
      end
    end
  end
  table.insert(pieces, list:sub(from))
  return table.concat(pieces)
end
local function write_lists()
  for key, fields in pairs(list_changes) do
    for field, changes in pairs(fields) do
      local list = call('HGET', key, field) or ''
      if #changes.removals > 0 then list = without_rows(list, changes.removals, changes.width) end
      list = list .. table.concat(changes.additions)
      if list == '' then call('HDEL', key, field) else call('HSET', key, field, list) end
    end
  end
  list_changes = {}
end

-- Removes a memory from all lists but those of relations. Returns its labels.
local function remove(id)
  local head = call('HGET', heads, id)
  if not head then return {} end
  local row = tonumber(string.match(head, '^%d+'))
  local lists = cmsgpack.unpack(call('HGET', places, row))
  for _, stem in ipairs(lists[1]) do drop(words, stem, row, posting_bytes) end
  for _, label in ipairs(lists[2]) do drop(labels, label, row, 4) end
  if lists[4] > 0 then drop(vectors, vector_field(lists[3], row), row, lists[4] + 4) end
  drop(rows, chunk(row, 1024), row, row_bytes)
  call('HDEL', heads, id)
  for _, key in ipairs({values, tokens, places}) do call('HDEL', key, row) end
  return lists[2]
end

local function remove_relations(field)
  local list = call('HGET', ends, field) or ''
  for at = 1, #list, 4 do
    local number = struct.unpack('<I4', list, at)
    local value = call('HGET', relations, number)
    if value then
      local relation = cmsgpack.unpack(value:sub(5, 4 + struct.unpack('<I4', value)))
      call('HDEL', relations, number)
      call('HDEL', numbers, relation[1])
      for _, name in ipairs(relation[2]) do drop(ends, name, number, 4) end
    end
  end
end

for at, requirement in ipairs(change.require) do
  local head = call('HGET', heads, requirement[1])
  local revision = head and string.match(head, '^%d+ (.*)$')
  if (revision or '') ~= requirement[2] or (revision and requirement[2] == '') then
    return 'memory ' .. at
  end
end
local marker_names = {}
for at, marker in ipairs(change.markers) do
  if marker_names[marker[1]] or call('HEXISTS', markers, marker[1]) == 1 then return 'marker ' .. at end
  marker_names[marker[1]] = true
end

call('HINCRBY', counters, 'change', 1)
for _, marker in ipairs(change.markers) do call('HSET', markers, marker[1], marker[2]) end
local removed_labels = {}
for _, id in ipairs(change.delete) do
  for _, label in ipairs(remove(id)) do removed_labels[label] = true end
  remove_relations('m:' .. id)
end
write_lists()
for label in pairs(removed_labels) do
  if label:sub(1, 2) == 'e:' and call('HEXISTS', labels, label) == 0 then
    local key = label:sub(3)
    remove_relations(label)
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
local is_new = {}
for at, entity in ipairs(change.entities) do
  local member = entity[1] .. '\\0' .. entity[2]
  is_new[at] = call('HSETNX', names, member, entity[3])
  if is_new[at] == 1 then call('ZADD', entities, 0, member) end
end
for _, relation in ipairs(change.relations) do
  if call('HEXISTS', numbers, relation[1]) == 0 then
    local number = call('HINCRBY', counters, 'relation', 1)
    call('HSET', numbers, relation[1], number)
    call('HSET', relations, number, relation[3])
    for _, name in ipairs(relation[2]) do append(ends, name, struct.pack('<I4', number)) end
  end
end
write_lists()
return is_new
"""

WRITE = Script(_HEAD + _BODY)

REWRITE = Script(
    _HEAD
    + """
-- Writes all of a tenant again under another secret. ARGV in addition: the new secret, and the number of changes when
-- everything was read. Rows go on counting, so that a reader that chose a row before finds no other memory there.
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
local reply = {redis.call('HGET', KEYS[3], 'secret')}
for at, id in ipairs(ARGV) do
  local head = redis.call('HGET', KEYS[1], id)
  reply[at + 1] = head and redis.call('HGET', KEYS[2], string.match(head, '^%d+'))
end
return reply
"""
)

ERASE = Script(
    """
-- KEYS: all of a tenant's, heads first. Returns the number of memories.
local count = redis.call('HLEN', KEYS[1])
redis.call('UNLINK', unpack(KEYS))
return count
"""
)
