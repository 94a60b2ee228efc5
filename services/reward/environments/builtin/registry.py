"""The classes of the environments that come with Shoal, by module."""

CLASSES = {
    "browse": "Browse",
    "calculator": "Calculator",
    "counter": "Counter",
    "guess_number": "GuessNumber",
    "mcp": "Mcp",
    "openenv": "OpenEnv",
    "python": "Python",
    "sandbox": "Sandbox",
    "search": "Search",
    "toolbox": "Toolbox",
    "wordle": "Wordle",
}
