"""Code that runs inside the sandbox; imports only the standard library, not the rest of Muster.

`server.py` forks a process for each job; `confine.py` drops its privileges; the other modules are the kinds of jobs.
Imports between them are relative: in the sandbox, this package is top-level, under the name `inside`.
"""
