"""Episodes: the turns of a policy and of its environment, as text and as tokens."""
