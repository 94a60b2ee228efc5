"""The environments that come with Shoal, one a file. They need the standard library and `shoal.environment` alone, so
that they are examples too; `python` needs the sandbox."""
