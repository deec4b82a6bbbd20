"""The HTTP side of the proxy: the application that clients talk to, the REST API, MCP, metrics and log lines."""
