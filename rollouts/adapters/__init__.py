"""Common parts of packages that adapt environments of another library: see `integrations/`.

environment  base class of such an environment; runs the package's jobs in a sandbox
job          for the package's job module, which runs in the sandbox; imports only the standard library
"""
