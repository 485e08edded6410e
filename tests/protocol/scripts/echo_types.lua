assert(absent == nil and missing_text == nil and type(fraction) == 'number')
redis.call('SET', P .. 'number', number)
set_fields(P .. 'fields', fields)
return reply{number = number, text = text .. int(number + 1), flag = not flag, raw = raw, names = {'a', 'b'},
  pairs = redis.call('HGETALL', P .. 'fields')}
