"""Custom verifiers: functions in a file, or in an installed package that does not come with Shoal."""
