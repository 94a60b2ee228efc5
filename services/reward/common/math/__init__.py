"""Mathematical answers: finding the stated answer, normalizing its notation, and comparing two answers."""
