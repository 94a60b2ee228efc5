"""What runs in the sandbox. Standard library only: nothing else is there."""
