"""Mathematical answers: which one a text states, how it is written, and whether two are equal."""
