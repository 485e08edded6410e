"""Learning from rollouts: losses, batches and optimiser steps. It knows no network, ledger or run."""
