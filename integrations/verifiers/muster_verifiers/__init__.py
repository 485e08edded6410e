"""Adapts tasksets of the verifiers library as environments.

family      the environment family `verifiers`, and its episodes
tasks_file  the file with the tasks of a taskset
export      the command that writes this file
taskset     loads a taskset, and refuses what is not reproducible
job         runs tools and rewards, inside a sandbox
loop        event loop without input and output, whose clock never waits

`family` never imports verifiers or a taskset; `job` does, and runs in the sandbox, where the rest of Muster is missing.
"""
