"""Learning from rollouts: losses, batches and optimiser steps. Independent of network, ledger and run."""
