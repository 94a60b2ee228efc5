"""`shoal export`: copies the models of a run to another place."""
