"""Messages that cross the border between the head and a worker process, and how they are framed."""
