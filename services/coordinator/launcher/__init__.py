"""Starts the services as processes of this machine, watches them, and ends every one of them."""
