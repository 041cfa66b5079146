"""One file for each command of ``testbed``."""
