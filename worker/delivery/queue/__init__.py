"""The durable queue of files that tasks deliver.

The worker uploads these files to the object store and, if they are work, submits them to the ledger.
"""
