"""An elastic inference pipeline: the application that shows what an endpoint's move does to what runs on it.

Requests enter at ``source``, pass ``stage-1`` to ``stage-N`` as activations, and come back as tokens by way of
``sink``; every token asks for the next one until the request has all of its tokens. What crosses the network depends
on every byte before it, so that a run in which anything was lost, repeated, mixed up or forgotten gives other bytes
than a quiet one.
"""
