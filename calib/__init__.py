"""Hardware files: where they are found, what they must say, and later how they are measured."""
