-- wrk's request: a small chat completion whose text is never the same twice.
local head = '{"model":"gpt-4.1","messages":[{"role":"user","content":"'
local text = " Which of the functions below may be called before the loop runs, and which of them need "
  .. "a running loop? Answer with their names only, in the order of the file, one on each line, please."
local tail = '"}],"max_tokens":256}'
local count = 0

function init()
  math.randomseed(os.time())
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.headers["authorization"] = "Bearer sk-bench"
end

function request()
  count = count + 1
  local mark = count .. "-" .. math.random(1, 1000000000)
  return wrk.format(nil, nil, nil, head .. mark .. text .. tail)
end
