"""Generated from proto/shoal/v1 by `make proto`; not edited by hand."""
