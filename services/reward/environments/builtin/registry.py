"""The classes of the environments that come with Shoal, by module."""

CLASSES = {
    "calculator": "Calculator",
    "counter": "Counter",
    "guess_number": "GuessNumber",
    "python": "Python",
    "wordle": "Wordle",
}
