"""What operators with state must leave in the sink, in plain Python. The models share no code with Sluice.

Each gets the records as they were produced, and the offsets of each batch from Spark's checkpoint.
"""
