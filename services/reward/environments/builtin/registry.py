"""The classes of the environments that come with Shoal, by module."""

CLASSES = {
    "browse": "Browse",
    "calculator": "Calculator",
    "counter": "Counter",
    "guess_number": "GuessNumber",
    "mcp": "Mcp",
    "openenv": "OpenEnv",
    "python": "Python",
    "reasoning_gym": "ReasoningGym",
    "sandbox": "Sandbox",
    "search": "Search",
    "textarena": "TextArena",
    "toolbox": "Toolbox",
    "verifiers": "Verifiers",
    "wordle": "Wordle",
}
