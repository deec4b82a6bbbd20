"""The server process: event loop, logging."""
