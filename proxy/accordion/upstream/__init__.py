"""The way to the providers: sockets, routes, retries."""
