"""The code inside a process of environments. Here, only the standard library and `shoal.environment` are imported: the
process may be another interpreter."""
