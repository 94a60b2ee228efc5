"""The classes of the environments that come with Shoal, by module."""

CLASSES = {"calculator": "Calculator"}
