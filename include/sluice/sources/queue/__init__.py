"""Message queues as a source. A new kind of queue is one class with the methods of :class:`.base.Queue`."""
