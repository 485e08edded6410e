"""Recomputes rows of rollout files, by torch in this process or by vLLM in a process of its own.

torch_recomputer    any file, by torch; differences are compared with calibrated limits
vllm_recomputer     files of a numerics class, by vLLM of the same class; honest files have no differences
errors              errors of machines that do not reproduce a class
place               a vLLM installation on this machine, and its classes
classes             the program that prints the classes of an installation
vllm_process        starts a vLLM process and sends requests to it
program             the vLLM process itself (`python -m rollouts.recompute.program`)
messages            messages between `vllm_process` and `program`
reference           recorded files of numerics classes, with which a machine proves that it reproduces a class
"""
