"""The mathematics that a completion's text states: its answer, and the items in their order."""
