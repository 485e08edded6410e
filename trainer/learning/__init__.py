"""What is learned from rollouts: losses, batches, optimiser steps. No network, no ledger and no run in here."""
