"""OpenAI-compatible service of one model: `muster serve` (docs/serving.md).

errors      errors in OpenAI's form
record      the field `muster` of every answer, from which an answer is verified
version     a folder that is served: its digest, model and tokenizer
limits      bounds on what clients can make the service do
backend     one engine on a thread; admission, pauses, weight updates
generation  one request's answers on their way from the engine to the client
requests    bodies of requests, and options that the service refuses
replies     bodies of answers, whole and streamed
event_stream  server-sent events to a client that may stop reading
routes, app the HTTP service
"""
