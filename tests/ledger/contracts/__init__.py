"""One positive and one negative test for every function of the contracts, on both development chains."""
