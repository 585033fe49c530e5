"""What this process may use: cores and memory of its node, and a place to keep things; and how it was started."""
