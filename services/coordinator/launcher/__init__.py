"""The services as processes of this machine: check, start, watch, and end them."""
