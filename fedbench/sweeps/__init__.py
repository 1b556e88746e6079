"""Many runs: the grid of them, their engine, their summary."""
