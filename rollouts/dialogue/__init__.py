"""Dialogues of the model with an environment, in tokens.

formats       how messages become tokens, and drawn tokens messages
conversation  the state of one dialogue: limits, turns and end; used by nodes to play and by verifiers to replay
play          plays dialogues over an engine
transcript    dialogues as text for people
"""
