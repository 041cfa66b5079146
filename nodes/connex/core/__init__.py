"""The protocol as a pure function of frames, commands and time.

Nothing here reads a clock, draws a random number or does I/O: time is an integer of nanoseconds passed in, and so is
randomness.
"""
