"""What a run gives away: bounds on epsilon, their proofs beside them; logarithms are natural."""
