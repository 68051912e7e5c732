local find, format, gsub = string.find, string.format, string.gsub
local concat, sort = table.concat, table.sort
local show

local function show_table(value, depth)
  local texts = {}
  if depth > 4 then return '{...}' end
  for key, field in next, value do
    texts[#texts + 1] = '[' .. show(key, depth + 1) .. ']=' .. show(field, depth + 1)
  end
  sort(texts)
  return '{' .. concat(texts, ',') .. '}'
end
show = function(value, depth)
  local kind = type(value)
  if kind == 'number' then
    return value ~= value and 'nan' or format('%.17g', value)
  elseif kind == 'string' then
    local is_message = find(value, '^case:%d+: ') or find(value, '^attempt to ') or find(value, '^bad argument #')
      or find(value, '^cannot resume ')
    if is_message then return '\1' .. value .. '\2' end
    -- An address does not count.
    if not find(value, '%l: ') then return '"' .. value .. '"' end
    return '"' .. gsub(value, '(%l+): %w+', function(name)
      return (name == 'table' or name == 'function' or name == 'thread') and name .. ': address' or nil
    end) .. '"'
  elseif kind == 'table' then
    return show_table(value, depth)
  elseif kind == 'nil' or kind == 'boolean' then
    return tostring(value)
  end
  return kind
end
local function show_all(ok, ...)
  local texts = {ok and 'ok' or 'error'}
  for index = 1, select('#', ...) do texts[index + 1] = show((select(index, ...)), 0) end
  return concat(texts, ' ')
end
local results = {}
for index, source in ipairs(ARGV) do
  local chunk = loadstring(source, '@case')
  results[index] = chunk and show_all(pcall(chunk)) or 'error that it is no program'
end
return results
