"""`shoal export`: copies of the models of a run, elsewhere."""
