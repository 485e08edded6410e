"""Dialogues of the model with an environment, in tokens.

formats       how messages become tokens, and drawn tokens messages
chat_turns    messages and tools as chat templates read them
conversation  the state of one dialogue: limits, turns and end; used by nodes to play and by verifiers to replay
play          plays dialogues over an engine
transcript    dialogues as text for people

Terms:

message       one text: a `ModelMessage` of the model, or a `GivenMessage` that the model reads, with a role
turn          a message of the model as tokens, with the tokens given after it (`rollouts.turns.Turn`)
opening       the messages before the model's first one; their tokens are the prompt
reply         what the environment gives after a message of the model, such as results of tools, or the end
call          a use of a tool, read from a message of the model (`rollouts.environments.tool_calls`)
Episode       the environment's side of one dialogue, in messages: opening, tools, replies and score
Conversation  an episode in tokens, with a format and the recipe's limits; it decides when the dialogue is over
Dialogue      a conversation to be played on an engine, with the seed of its noise; played, a `PlayedDialogue`
transcript    a dialogue as text, for people
"""
