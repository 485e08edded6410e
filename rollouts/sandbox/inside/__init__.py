"""What runs inside the sandbox: standard library only, and nothing of the rest of Muster.

`server.py` forks a process for each job; `confine.py` takes its rights away; the other modules are the kinds of jobs.
Imports between them are relative: inside, this package stands alone, under the name `inside`.
"""
