"""Message queues as a source. A new kind of queue is one module with a :class:`~sluice.sources.queue.base.Queue`."""
