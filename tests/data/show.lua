local function show(value)
  if type(value) == 'string' then
    return '"' .. (string.gsub(value, '[%c"\\\127-\255]', function(byte) return string.format('\\%03d', string.byte(byte)) end)) .. '"'
  elseif type(value) == 'number' then
    return value ~= value and 'nan' or string.format('%.17g', value)
  elseif type(value) == 'table' then
    local fields = {}
    for key, field in pairs(value) do fields[#fields + 1] = '[' .. show(key) .. ']=' .. show(field) end
    table.sort(fields)
    return '{' .. table.concat(fields, ',') .. '}'
  elseif type(value) == 'userdata' then
    return 'null'
  end
  return tostring(value)
end
local function show_all(...)
  local texts = {}
  for index = 1, select('#', ...) do texts[index] = show((select(index, ...))) end
  return table.concat(texts, ' ')
end
return show_all(pcall(function() EXPRESSION end))
