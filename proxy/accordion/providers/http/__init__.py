"""The HTTP client: routes, connections, retries, WebSockets."""
