"""The base of all rooms: checks, float64 arithmetic by NumPy, files of values, and private names of other packages."""
