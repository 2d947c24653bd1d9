"""What a graph with breaks needs of memory."""
