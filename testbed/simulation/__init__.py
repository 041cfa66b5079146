"""Nodes of the core in virtual time: the protocol alone, without processes and sockets, on seeded channels.

Quick enough for thousands of random schedules (``testbed explore``), and the ground of the core's own tests.
"""
