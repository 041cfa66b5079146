"""Connex on real sockets: asyncio (best on uvloop) around the pure core. Applications import ``connex``, not this
package.
"""
