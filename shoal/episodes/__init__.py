"""Episodes: what a policy says and hears in several turns, as text and as tokens."""
