"""What the text of a completion states in mathematics: its answer, and the items in the order in which they stand."""
