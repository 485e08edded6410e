"""Code that runs inside the sandbox. Only `gym`, `mathematics` and `parquet` import more than the standard library.

`server.py` forks a process for each job; `confine.py` drops that process's privileges; the other modules are the kinds
of jobs. Imports between these modules are relative: in the sandbox, this package is top-level, under the name `inside`.
"""
