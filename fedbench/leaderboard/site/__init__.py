"""The rendered pages of the leaderboard."""
